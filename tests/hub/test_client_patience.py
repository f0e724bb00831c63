"""How requests are tried again: as late as the Hub asks, by chance, and no more often than patience allows."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import httpx2
import pytest
from hub_faults import Fault
from huggingface_hub import constants, get_session

from overlay.errors import OverlayError, TryAgain
from overlay.hub import client, patience

if TYPE_CHECKING:
    from conftest import World

pytestmark = pytest.mark.no_torch

ONE, TWO = "unet/one.safetensors", "unet/two.safetensors"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait, none of which is waited for."""
    seconds: list[float] = []
    monkeypatch.setattr(patience, "SECOND", 1.0)
    monkeypatch.setattr(patience, "_wait", lambda wait, _stop: seconds.append(wait))
    return seconds


def failure(world: World, *paths: str) -> OverlayError:
    """What opening the repo and fetching files raises."""
    with pytest.raises(OverlayError) as caught:
        world.open().fetch(paths, None)
    return caught.value


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"Retry-After": "7"}, 7),
        (503, {"Retry-After": " 7 "}, 7),
        (429, {"RateLimit": '"resolvers";r=0;t=55', "Retry-After": "7"}, 55),
        (429, {"RateLimit": '"resolvers";r=12;t=55'}, None),  # another limit than this one was met
        (503, {"RateLimit": '"resolvers";r=0;t=55'}, None),
        (429, {"RateLimit": "soon"}, None),
        (429, {"RateLimit": f'"api";r=0;t={"9" * 150}'}, 10**9),
        (429, {"Retry-After": "9" * 150}, 10**9),
        (429, {"Retry-After": "Tue, 01 Dec 2026 00:00:00 GMT"}, None),
        (429, {"Retry-After": "-7"}, None),
        (429, {"Retry-After": "٧"}, None),  # noqa: RUF001  # a digit elsewhere
        (429, {"Retry-After": "9" * 5000}, None),
        (429, {}, None),
    ],
)
def test_what_the_hub_asks_is_read_from_its_headers(status: int, headers: dict[str, str], expected: int | None) -> None:
    """The limit that was met wins over the general header; nonsense is as good as nothing."""
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert patience.asked_wait(httpx2.Response(status, headers=encoded)) == expected


@pytest.mark.parametrize("asked", [None, 1, 40, 300])
def test_hosts_that_start_together_do_not_come_back_together(
    world: World, waits: list[float], asked: int | None
) -> None:
    """Never before the Hub asks, soon after, each at its own moment, whatever the global generator is seeded with."""
    for _ in range(20):
        random.seed(0)
        world.server.fault(path="*/revision/*", status=429, retry_after=asked, times=1)
        client.resolve_branch("org/base")
    floor = asked or 0
    step = max(2.0, floor / 4)
    assert len(waits) == 20
    assert all(floor + step / 2 <= wait <= floor + step for wait in waits)
    assert len(set(waits)) == 20
    assert max(waits) - min(waits) > step / 8


def test_waits_grow_while_the_hub_does_not_say_how_long(world: World, waits: list[float]) -> None:
    """Up to a minute, so that ever fewer hosts ask at a time."""
    world.server.fault(path="*/revision/*", status=429, times=8)
    client.resolve_branch("org/base")
    for number, wait in enumerate(waits, 1):
        assert min(60, 2**number) / 2 <= wait <= min(60, 2**number)
    assert len(waits) == 8


@pytest.mark.parametrize(("method", "path"), [("GET", "*/tree/*"), ("HEAD", f"*{ONE}"), ("GET", f"*{ONE}")])
def test_patience_with_a_rate_limit_ends(world: World, waits: list[float], method: str, path: str) -> None:
    """Status 5, when it may be tried again, and no request more than one after each wait."""
    world.server.fault(method=method, path=path, status=429, retry_after=100)
    error = failure(world, ONE)
    assert (type(error), error.code) == (TryAgain, "rate-limited")
    assert "wait 100 seconds" in (error.hint or "")
    assert 4 <= len(waits) <= 5
    assert sum(waits) <= patience.PATIENCE
    assert len(world.server.asked(method, path)) == len(waits) + 1


def test_a_hub_that_asks_for_more_than_patience_is_not_waited_for(world: World, waits: list[float]) -> None:
    """The user is told at once."""
    world.server.fault(path="*/tree/*", status=429, retry_after=86400)
    assert "wait 86400 seconds" in (failure(world).hint or "")
    assert waits == []
    assert len(world.server.asked()) == 1


@pytest.mark.parametrize(
    "header",
    ['RateLimit: "api";r=0;t=' + "9" * 5000, 'RateLimit: "api";r=0;t=' + "9" * 150, "Retry-After: " + "9" * 5000],
    ids=["endless", "no-float", "endless-after"],
)
def test_absurd_headers_are_survived(
    world: World, waits: list[float], header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers without end make neither a crash nor an endless wait."""
    send = httpx2.HTTPTransport.handle_request
    name, _, value = header.partition(": ")

    def absurd(transport: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        response = send(transport, request)
        response.headers[name] = value
        return response

    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", absurd)
    world.server.fault(path="*/tree/*", status=429)
    assert failure(world).code == "rate-limited"
    assert sum(waits) <= patience.PATIENCE


def test_after_patience_has_ended_the_next_repo_is_asked_once(world: World, waits: list[float]) -> None:
    """Ten models must not wait ten times."""
    world.server.fault(path="*/tree/*", status=429)
    failure(world)
    waits.clear()
    assert failure(world).code == "rate-limited"
    assert waits == []


@pytest.mark.parametrize("status", [408, 500, 503])
@pytest.mark.parametrize(("method", "path"), [("GET", "*/tree/*"), ("HEAD", f"*{ONE}"), ("GET", f"*{ONE}")])
def test_tries_are_not_multiplied(world: World, waits: list[float], status: int, method: str, path: str) -> None:
    """The client's own tries do not come on top of the program's; the waits differ and end in half a minute."""
    world.server.fault(method=method, path=path, status=status)
    assert failure(world, ONE).code == "hub-unavailable"
    assert len(world.server.asked(method, path)) == 1 + patience.RETRIES
    assert len(set(waits)) == patience.RETRIES
    assert 10 < sum(waits) < 30


def test_a_lost_connection_is_tried_again_by_chance(world: World, waits: list[float]) -> None:
    """In the middle of a header that is read by its range."""
    repo = world.open()
    world.server.fault(method="GET", path=f"*{TWO}", drop_after=20, times=3)
    assert repo.header(TWO).tensors
    assert [0.5 <= wait / 2**number <= 1 for number, wait in enumerate(waits)] == [True] * 3


def test_what_the_client_makes_again_comes_by_chance(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download whose connection is lost, before an answer or in the middle: each new request waits a moment more."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # less than one is not kept
    repo = world.open()
    waits: list[float] = []
    monkeypatch.setattr(patience, "SECOND", 1.0)
    monkeypatch.setattr(patience, "_wait", lambda seconds, _stop: waits.append(seconds))
    repo.fetch([ONE])
    assert waits == []
    world.server.fault(method="GET", path=f"*{TWO}", drop_after=70_000, times=1)
    send = httpx2.HTTPTransport.handle_request
    lost = iter([True, True, True, False])

    def losing(transport: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        if next(lost, False):
            raise httpx2.ConnectTimeout("lost", request=request)
        return send(transport, request)

    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", losing)
    repo.fetch([TWO])
    assert len(waits) == len(set(waits)) == 4
    assert all(0 <= wait <= 1 for wait in waits)


def test_half_a_file_is_not_thrown_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is met while a broken download is resumed: the client keeps what came."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # less than one is not kept
    faults = iter([Fault(drop_after=70_000), Fault(status=429)])
    repo = world.open()
    strike = world.server.strike

    def one_after_the_other(method: str, path: str) -> Fault:
        return next(faults, Fault()) if method == "GET" else strike(method, path)

    world.server.strike = one_after_the_other
    repo.fetch([TWO])
    answers = [(request.status, request.range) for request in world.server.asked("GET", f"*{TWO}")]
    assert [status for status, _ in answers] == [200, 429, 206]
    assert answers[1][1] == answers[2][1] is not None


def test_others_who_use_the_client_in_this_process_are_left_alone(world: World) -> None:
    """They get the answer that they would get without this program."""
    world.open()
    world.server.fault(path="*/revision/*", status=429)
    response = get_session().get(f"{constants.ENDPOINT}/api/models/org/base/revision/main")
    assert response.status_code == 429


def test_the_client_is_watched_once(world: World) -> None:
    """However many requests are made, and whatever hooks others have put there."""
    session = get_session()
    seen: list[int] = []
    session.event_hooks = session.event_hooks | {"response": [lambda response: seen.append(response.status_code)]}
    for _ in range(3):
        client.resolve_branch("org/base")
    assert len(get_session().event_hooks["response"]) == 2
    assert seen == [200] * 3


def test_a_failure_ends_the_waits_of_other_downloads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file is refused while another waits for five minutes: the run ends at once."""
    repo = world.open()
    waiting = threading.Event()
    original = patience._wait

    def wait(seconds: float, stop: threading.Event | None) -> None:
        waiting.set()
        original(seconds, stop)

    monkeypatch.setattr(patience, "SECOND", 1.0)
    monkeypatch.setattr(patience, "_wait", wait)
    world.server.fault(method="HEAD", path=f"*{TWO}", status=429, retry_after=300)
    strike = world.server.strike

    def refuse_once_the_other_waits(method: str, path: str) -> Fault:
        if path.endswith(ONE):
            assert waiting.wait(10)
        return strike(method, path)

    world.server.strike = refuse_once_the_other_waits
    world.server.fault(method="HEAD", path=f"*{ONE}", status=403)
    with pytest.raises(OverlayError) as caught:
        repo.fetch([ONE, TWO])
    assert caught.value.code == "forbidden"
