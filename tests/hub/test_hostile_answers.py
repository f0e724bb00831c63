"""Whatever an endpoint answers, it ends as an error of this program, and is never held against a repo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import hub_server
import pytest
from support.hubs import commit

from overlay.errors import OverlayError, Refused
from overlay.hub.history import Histories

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import World

pytestmark = pytest.mark.no_torch

REPO = "org/base"
FILE = {"type": "file", "path": "a", "size": 1, "oid": "0" * 40}
BODIES = [
    b"",
    b"<html>log in</html>",
    b"\xff\xfe",
    b"null",
    b"5",
    b'""',
    b"1e999",
    b"NaN",
    b'"text"',
    b"{}",
    b'{"sha": null}',
    b'{"sha": ["a"]}',
    b'{"sha": "main"}',
    b'{"sha": "' + b"a" * 40 + b'\\n"}',
    b'{"sha": "' + b"a" * 40 + b'", "sha": "' + b"b" * 40 + b'"}',
    b"[1]",
    b"[null]",
    b"[[]]",
    b"[{}]",
    b'[{"id": 5}]',
    b'[{"id": "' + b"g" * 40 + b'"}]',
    json.dumps([FILE | {"size": -1}]).encode(),
    json.dumps([FILE | {"size": "1"}]).encode(),
    json.dumps([FILE | {"oid": None}]).encode(),
    json.dumps([FILE | {"oid": "zz"}]).encode(),
    json.dumps([FILE | {"path": 5}]).encode(),
    json.dumps([FILE | {"path": None}]).encode(),
    json.dumps([FILE | {"lfs": ["x"]}]).encode(),
    json.dumps([FILE | {"lfs": {"oid": "x", "size": 1}}]).encode(),
    b"[" * 100_000,
    b'{"sha":' * 100_000,
]
ROUTES: dict[str, Callable[[World], object]] = {
    "revision": lambda world: world.open(revision=None),
    "tree": lambda world: world.open(),
    "commits": lambda _world: list(Histories(None, offline=False).commits(REPO)),
    "head": lambda _world: Histories(None, offline=False).head(REPO),
}


def answer(monkeypatch: pytest.MonkeyPatch, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer every question to the API with one body."""
    monkeypatch.setattr(hub_server, "_json", lambda _document: hub_server._Answer(status, headers, body))


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_what_is_no_answer_of_a_hub_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, body: bytes, ask: Callable[[World], object]
) -> None:
    """On every route that answers JSON, and nothing of it is kept."""
    answer(monkeypatch, body)

    with pytest.raises(Refused) as caught:
        ask(world)

    assert caught.value.code == "not-a-hub"
    assert "HF_ENDPOINT" in (caught.value.hint or "")
    assert len(caught.value.message) < 300
    assert not list(world.cache.rglob("trees/*"))


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 418, 500])
def test_a_bomb_beside_an_error_is_no_bug(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int, ask: Callable[[World], object]
) -> None:
    """The client reads the body of an error, too."""
    answer(monkeypatch, b"[" * 100_000, status)

    with pytest.raises(OverlayError) as caught:
        ask(world)

    assert caught.value.exit_status in (5, 6)


@pytest.mark.parametrize(
    "link",
    [
        "http://[",
        "",
        "file:///etc/passwd",
        "nowhere",
        "//",
        "\x01",
        "http://127.0.0.1:99999999/x",
        "?p=1",
    ],
)
@pytest.mark.parametrize("what", ["tree", "commits"])
def test_a_next_page_that_leads_nowhere_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, link: str, what: str
) -> None:
    """The address of the next page is the endpoint's word, too."""
    monkeypatch.setattr("overlay.hub.client._MAX_PAGES", 3)
    page = [FILE] if what == "tree" else [{"id": commit("a")}]
    answer(monkeypatch, json.dumps(page).encode(), Link=f'<{link}>; rel="next"')

    with pytest.raises(Refused) as caught:
        ROUTES[what](world)

    assert caught.value.code in ("not-a-hub", "hub-refused")  # the latter where it is a path that the endpoint lacks


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/x", "http://", "http://[", "x:y"])
def test_a_redirect_that_leads_nowhere_is_refused(world: World, location: str) -> None:
    """It is the endpoint that is at fault, and not the address that the user gave."""
    world.server.fault(path="/api/*", redirect=location)

    with pytest.raises(OverlayError) as caught:
        world.open()

    assert caught.value.exit_status in (5, 6)


def test_an_endless_listing_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that names itself as the next one does not keep anybody for good."""
    monkeypatch.setattr("overlay.hub.client._MAX_PAGES", 5)
    target = f"/api/models/{REPO}/tree/{commit('a')}?recursive=true"
    answer(monkeypatch, json.dumps([FILE]).encode(), Link=f'<{world.server.url}{target}>; rel="next"')

    with pytest.raises(Refused, match="does not end") as caught:
        world.open()

    assert caught.value.code == "not-a-hub"
    assert len(world.server.asked()) == 5


def test_no_hub_is_not_taken_for_a_commit_that_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login page says nothing of a commit whose cached copy is here without its listing."""
    world.fill()
    for listing in world.cache.rglob("trees/*.json"):
        listing.unlink()
    answer(monkeypatch, b"<html>log in</html>")

    with pytest.raises(Refused) as caught:
        world.open()

    assert caught.value.code == "not-a-hub"
