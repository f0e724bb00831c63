"""Heads, lists of commits, and the commits that a few digits stand for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.hubs import add_repo, client_of, commit

from overlay.errors import InvalidUsage, NotHere, OverlayError, Refused
from overlay.hub.history import Histories
from overlay.hub.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

REPO = "org/base"
A, B, C = commit("a"), commit("b"), "b" * 8 + "c" * 32
COMMITS = f"/api/models/{REPO}/commits/main"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A repo of three commits: aaa… is the oldest, ccc…-ish the head."""
    for revision in (A, B, C):
        add_repo(tmp_path / "hub", REPO, revision, {"README.md": revision})
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, tmp_path / "hf" / "hub"):
        server.content.history[REPO] = {C: "Rename  the\nspec", B: "Second", A: "First"}
        yield server


def online() -> Histories:
    return Histories(None, offline=False)


def test_commits_newest_first(server: HubServer) -> None:
    """All commits of a short history come with one request, which is counted."""
    traffic = Traffic()

    found = Histories(None, offline=False, traffic=traffic).commits(REPO)

    assert list(found) == [C, B, A]
    assert traffic.nbytes == sum(request.sent for request in server.asked(path=COMMITS))
    assert len(server.asked()) == 1


def test_pages_are_followed(server: HubServer) -> None:
    """However few commits the Hub gives in an answer, all of them come."""
    server.page_size = 1

    assert list(online().commits(REPO)) == [C, B, A]
    assert len(server.asked(path=COMMITS)) == 3


def test_no_further_than_needed(server: HubServer) -> None:
    """Pages behind the commit that is looked for are not asked for; the head is known by then."""
    server.page_size = 1
    histories = online()

    assert histories.behind(REPO, B) == 1
    assert histories.head(REPO) == C
    assert len(server.asked()) == 2


def test_main_moves_between_pages(server: HubServer, tmp_path: Path) -> None:
    """A commit that comes twice, because the pages have shifted, counts once."""
    add_repo(tmp_path / "hub", REPO, commit("d"), {"README.md": "new"})
    server.page_size = 2
    histories, found = online(), []
    for commit_ in histories.commits(REPO):
        found.append(commit_)
        server.content.history[REPO] = {commit("d"): "New", C: "Rename  the\nspec", B: "Second", A: "First"}

    assert found == [C, B, A]


def test_an_endless_history_is_cut(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more commits are taken than are looked through, and none is asked for after them."""
    monkeypatch.setattr("overlay.hub.history.MOST_COMMITS", 2)
    server.page_size = 1

    assert list(online().commits(REPO)) == [C, B]
    assert len(server.asked(path=COMMITS)) == 2


def test_each_history_is_asked_for_once(server: HubServer) -> None:
    """Head and commits are remembered while a command runs, and main may move meanwhile."""
    histories = online()
    histories.head(REPO), list(histories.commits(REPO))
    server.content.history[REPO] = {A: "Forced back"}
    server.forget()

    assert histories.head(REPO) == C
    assert histories.behind(REPO, A) == 2
    assert server.asked() == []
    assert online().head(REPO) == A


def test_behind(server: HubServer) -> None:
    """The head is 0 commits behind itself; a commit that was forced away has no place."""
    assert [online().behind(REPO, revision) for revision in (C, B, A, commit("d"))] == [0, 1, 2, None]
    assert server.asked(path=COMMITS)


@pytest.mark.parametrize(("text", "expected"), [("aaaa", A), (C[:9], C), (B[:39], B), ("main", C)])
def test_beginning_of_a_commit(server: HubServer, text: str, expected: str) -> None:
    """The first digits stand for the one commit that begins so."""
    assert online().full_commit(REPO, text) == expected
    assert server.asked()


def test_whole_commit_is_not_looked_for(server: HubServer) -> None:
    """Forty digits are taken as they are, whatever the repo has."""
    assert online().full_commit(REPO, commit("d")) == commit("d")
    assert server.asked() == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bbbbbbbb", "ambiguous-commit"),
        ("0123", "unknown-commit"),
        ("aaa", "not-a-commit"),
        ("AAAA", "not-a-commit"),
        ("v1.0", "not-a-commit"),
        ("a" * 41, "not-a-commit"),
        ("", "not-a-commit"),
    ],
)
def test_no_single_commit(server: HubServer, text: str, code: str) -> None:
    """What stands for several commits, for none, or is no beginning of one, is refused."""
    with pytest.raises(InvalidUsage) as refused:
        online().full_commit(REPO, text)
    assert refused.value.code == code
    assert REPO in refused.value.message
    assert len(server.asked()) <= 1


@pytest.mark.parametrize(
    "answer",
    [{}, "x", [1], [{}], [{"id": "main"}], [{"id": 5}], [{"id": A + "\n"}], None],
)
def test_answer_that_is_no_list_of_commits(server: HubServer, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else an endpoint answers is no history."""
    body = json.dumps(answer).encode()
    monkeypatch.setattr("overlay.hub.client.pages", lambda *_: iter([body]))

    with pytest.raises(Refused) as refused:
        list(online().commits(REPO))
    assert refused.value.code == "not-a-hub"
    assert server.asked() == []


def test_no_such_repo(server: HubServer) -> None:
    """A repo that is not there, and what is no repo id, are said as everywhere."""
    with pytest.raises(Refused, match="org/other"):
        list(online().commits("org/other"))
    with pytest.raises(InvalidUsage):
        online().head("../etc/passwd")
    assert server.url


def test_offline(server: HubServer) -> None:
    """Without requests nothing is known, and the message says so."""
    histories = Histories(None, offline=True)
    for ask in (histories.head, lambda repo: histories.behind(repo, A)):
        with pytest.raises(NotHere) as refused:
            ask(REPO)
        assert refused.value.code == "offline"
    assert server.asked() == []


# Hub folders


def test_folder_has_no_order(tmp_path: Path) -> None:
    """The only revision of a hub folder is its head, and all of its history."""
    add_repo(tmp_path, REPO, A, {"x": "1"})
    histories = Histories(tmp_path, offline=False)

    assert histories.head(REPO) == A
    assert list(histories.commits(REPO)) == [A]
    assert histories.behind(REPO, B) is None


def test_folder_with_a_link(tmp_path: Path) -> None:
    """Among several revisions, `main` is a link to the head; the first digits are looked for in the names."""
    for revision in (A, B, C):
        add_repo(tmp_path, REPO, revision, {"x": "1"})
    (tmp_path / REPO / "main").symlink_to(A)
    histories = Histories(tmp_path, offline=True)

    assert histories.head(REPO) == A
    assert histories.full_commit(REPO, "bbbbbbbbb") == B
    with pytest.raises(InvalidUsage, match="2 commits begin so"):
        histories.full_commit(REPO, "bbbb")


@pytest.mark.parametrize(
    ("names", "code"), [([A, B], "several-revisions"), (["main"], "no-commit"), ([], "revision-not-here")]
)
def test_folder_without_a_head(tmp_path: Path, names: list[str], code: str) -> None:
    """Several revisions, one without a commit's name, or none: there is no head to speak of."""
    for name in names:
        add_repo(tmp_path, REPO, name, {"x": "1"})

    with pytest.raises(OverlayError) as refused:
        Histories(tmp_path, offline=False).head(REPO)
    assert refused.value.code == code
