"""What moved upstream, which newer commits belong together, and what is advised."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import hub_server
import pytest
from support.contracts import MODEL
from support.upstream import CONFIG, SPEC, Upstream, upstream_hub

from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO, SOURCE_REPO, HubFolder
from overlay.errors import Refused, TryAgain
from overlay.fingerprint import DigestMemo
from overlay.hub.history import Histories
from overlay.upkeep import search as search_module
from overlay.upkeep.outlook import Outlook, RepoState, outdated
from overlay.upkeep.repos import Repos
from overlay.upkeep.search import Pair, Search, check_pinned, search, standing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

ADAPTERS = "stage-dmd-step-250/adapters"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """Repos of one commit each, with the old name of the descriptions, all pinned."""
    with upstream_hub(tmp_path, monkeypatch) as upstream:
        yield upstream


def look(world: Upstream) -> Outlook:
    return outdated(world.resolution(), world.repos())


def repin(world: Upstream, hub: HubFolder) -> None:
    """Pin the source alone to a revision, as an edit by hand does."""
    world.registry.write_text(world.registry.read_text().replace(world.first.source, hub.source))


def state(outlook: Outlook, repo: str) -> RepoState:
    return next(found for found in outlook.repos if found.repo == repo)


def found_in(world: Upstream) -> Search:
    resolution, repos = world.resolution(), world.repos()
    return search(resolution, repos, check_pinned(resolution, repos))


def pair_of(world: Upstream) -> Pair | None:
    return found_in(world).pair


def test_nothing_moved(world: Upstream) -> None:
    """Pins that are the heads are current; nothing is searched."""
    outlook = look(world)

    assert (outlook.advice, outlook.pinned.status, outlook.search, outlook.trouble) == ("current", "passed", None, None)
    assert [(found.role, found.behind, found.moved) for found in outlook.repos] == [
        ("source", 0, False),
        ("overlay", 0, False),
        ("need", 0, False),
    ]


def test_renamed_upstream(world: Upstream) -> None:
    """A rename that the overlay does not know: named file by file, and staying is safe."""
    world.commit_source("Rename the descriptions", renamed=True)

    outlook = look(world)

    moved = state(outlook, SOURCE_REPO)
    assert outlook.advice == "stay"
    assert outlook.pinned.status == "passed"
    assert (moved.pinned, moved.head, moved.behind) == (world.first.source, world.now.source, 1)
    assert moved.changes.renamed == tuple(
        (f"{ADAPTERS}/{name}/{CONFIG}", f"{ADAPTERS}/{name}/{SPEC}") for name in ("default", "turbo")
    )
    assert (moved.changes.added, moved.changes.removed, moved.changes.changed) == ((), (), ())
    assert outlook.search is not None
    assert outlook.search.pair is None
    assert outlook.search.pairs == 1
    assert outlook.search.reason.startswith("file-renamed: ")
    assert SPEC in outlook.search.reason


def test_fixed_overlay_appears(world: Upstream) -> None:
    """Once the overlay asks for the new name, the pair of heads holds, and costs nothing."""
    world.commit_source("Rename", renamed=True)
    world.commit_overlay("Ask for the new name", spec=SPEC)

    outlook = look(world)

    assert outlook.advice == "bump"
    assert outlook.search is not None
    assert outlook.search.pair == Pair(world.now.source, world.now.overlay)
    assert outlook.search.report is not None
    assert outlook.search.report.cost is not None
    assert outlook.search.report.cost.downloaded == outlook.search.report.cost.written == 0
    assert state(outlook, OVERLAY_REPO).changes.changed == ("_overlay/overlay_manifest.json",)


def test_newest_pair_before_a_break(world: Upstream) -> None:
    """Where the heads do not hold, the commits just before the break do."""
    good = world.commit_source("Say more")
    overlay = world.commit_overlay("Say more")
    world.commit_source("Rename", renamed=True)

    assert pair_of(world) == Pair(good.source, overlay.overlay)


def test_fewest_commits_behind_both_heads(world: Upstream) -> None:
    """Of pairs that hold, that one wins which is fewest commits behind, both together; of equals the newer source."""
    world.commit_source("Say more")
    source = world.commit_source("Rename", renamed=True).source
    overlay = world.commit_overlay("Ask for the new name", spec=SPEC).overlay
    world.commit_overlay("Ask for the old name again", spec=CONFIG)

    # As near, one commit behind in sum: the source before the rename with the newest overlay.
    assert pair_of(world) == Pair(source, overlay)


def test_never_older_than_the_pins(world: Upstream) -> None:
    """Where the pins hold, what is older is no way to go."""
    repin(world, world.commit_source("Say more"))
    world.commit_source("Rename", renamed=True)

    outlook = look(world)

    assert outlook.advice == "stay"
    assert outlook.search is not None
    assert outlook.search.pairs == 1


@pytest.mark.parametrize("more", [0, 2], ids=["pinned at the head", "head moved on"])
def test_back_past_pins_that_do_not_hold(world: Upstream, more: int) -> None:
    """After a bump of the source alone, past a rename, the way out is the newest pair before it."""
    good = world.commit_source("Say more")
    repin(world, world.commit_source("Rename", renamed=True))
    for number in range(more):
        world.commit_source(f"Say more {number}")

    outlook = look(world)

    assert outlook.advice == "repair"
    assert (outlook.pinned.status, outlook.trouble) == ("failed", None)
    assert outlook.search is not None
    assert outlook.search.pair == Pair(good.source, world.first.overlay)
    assert (outlook.search.newest is None) == (more == 0)


def test_on_from_pins_that_do_not_hold(world: Upstream) -> None:
    """Where a newer pair holds, that is the way out of pins that do not."""
    repin(world, world.commit_source("Rename", renamed=True))
    world.commit_overlay("Ask for the new name", spec=SPEC)

    outlook = look(world)

    assert outlook.advice == "repair"
    assert outlook.search is not None
    assert outlook.search.pair == Pair(world.now.source, world.now.overlay)


def test_nothing_holds(world: Upstream) -> None:
    """Where neither the pins nor anything before or after them holds, there is no way, and that is known to be all."""
    world.commit_source("Rename", renamed=True)
    history = world.server.content.history
    history[SOURCE_REPO] = {world.now.source: "First"}
    repin(world, world.now)

    outlook = look(world)

    assert (outlook.advice, outlook.trouble) == ("repair", None)
    assert outlook.search is not None
    assert (outlook.search.pair, outlook.search.pairs, outlook.search.is_whole) == (None, 0, True)


def test_wrong_fingerprint(world: Upstream) -> None:
    """Commits that hold are no reason to search, whatever fingerprint stands beside them; that is to be repaired."""
    fingerprint = str(world.resolution().entry.overlay_fingerprint)
    world.registry.write_text(world.registry.read_text().replace(fingerprint, "0" * 64))

    outlook = look(world)

    assert (outlook.advice, outlook.search) == ("repair", None)
    assert [found.code for found in outlook.pinned.findings if found.severity == "error"] == ["fingerprint-differs"]
    assert standing(outlook.pinned) == "passed"


def test_h29_pin_that_the_history_lost(world: Upstream) -> None:
    """After a forced push the pin has no place in the history: of what is there, only the head counts."""
    world.commit_source("One")
    world.commit_source("Two")
    history = world.server.content.history
    history[SOURCE_REPO] = {commit: title for commit, title in history[SOURCE_REPO].items() if title != "First"}

    outlook = look(world)

    assert state(outlook, SOURCE_REPO).behind is None
    assert outlook.advice == "bump"
    assert outlook.search is not None
    assert not outlook.search.is_whole
    assert outlook.search.pair == Pair(world.now.source, world.first.overlay)


def test_h29_pin_that_is_gone(world: Upstream) -> None:
    """A commit that the Hub has no more is said; a head that holds is the way out, and without one there is none."""
    world.commit_source("One")
    shutil.rmtree(world.first.source_folder)
    del world.server.content.history[SOURCE_REPO][world.first.source]

    outlook = look(world)

    assert [finding.code for finding in outlook.pinned.findings] == ["vanished"]
    assert outlook.advice == "repair"
    assert outlook.search is not None
    assert outlook.search.pair == Pair(world.now.source, world.first.overlay)


def test_h29_pin_that_is_gone_and_nothing_else_holds(world: Upstream) -> None:
    """That the pin is gone is what there is to say: not that it could not be told."""
    world.commit_source("Rename", renamed=True)
    shutil.rmtree(world.first.source_folder)
    del world.server.content.history[SOURCE_REPO][world.first.source]

    outlook = look(world)

    assert [finding.code for finding in outlook.pinned.findings] == ["vanished"]
    assert (outlook.advice, outlook.trouble) == ("repair", None)


def test_older_commits_are_not_gone_through_for_good(world: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends after so many commits of a repo, and says that there are more."""
    monkeypatch.setattr(search_module, "MOST_COMMITS", 1)
    world.commit_source("One")
    world.commit_source("Rename", renamed=True)

    found = found_in(world)

    assert (found.pair, found.pairs, found.is_whole) == (None, 1, False)


def test_number_of_checks_is_bounded(world: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pairs there are, only so many are checked in full."""
    monkeypatch.setattr(search_module, "MOST_CHECKS", 1)
    world.commit_source("One")
    world.commit_source("Rename", renamed=True)

    found = found_in(world)

    assert (found.pair, found.is_whole) == (None, False)


def test_each_commit_is_opened_once(world: Upstream) -> None:
    """Listings are asked for once a commit, whatever number of pairs it is part of."""
    for number in range(3):
        world.commit_source(f"Source {number}", renamed=number == 0)
        world.commit_overlay(f"Overlay {number}")

    outlook = look(world)

    assert outlook.advice == "bump"
    listings = [request.path for request in world.server.asked("GET", "*/tree/*")]
    assert len(listings) == len(set(listings))
    assert world.server.payload() == 0


def test_listing_rules_out_first(world: Upstream) -> None:
    """A source that lacks a required file is ruled out by its listing: nothing of it is read."""
    world.commit_source("Rename", renamed=True)
    middle = world.now.source
    world.commit_source("Say more")

    look(world)

    assert world.server.asked("GET", f"*/resolve/{middle}/*") == []
    assert world.server.asked("GET", f"*/tree/{middle}")


def test_files_added_removed_and_changed(world: Upstream) -> None:
    """Only files that the model needs are named, each by what became of it."""
    world.commit_source("Say more")
    folder = world.now.source_folder
    (folder / f"{ADAPTERS}/turbo/{CONFIG}").unlink()
    config = folder / "h3-base/vae/config.json"
    text = config.read_text()
    config.unlink()
    config.write_text(text + "\n")
    (folder / "h3-base/audio_vae/more.json").write_text("{}")

    changes = state(look(world), SOURCE_REPO).changes

    assert changes.removed == (f"{ADAPTERS}/turbo/{CONFIG}",)
    assert changes.changed == ("h3-base/vae/config.json",)


def test_need_that_moved(world: Upstream) -> None:
    """A need stays at its pin: that it moved is said, and changes no advice."""
    head = "e" * 40
    needs = world.first.root / NEEDS_REPO
    shutil.copytree(next(iter(needs.iterdir())), needs / head)
    (needs / head / "tokenizer" / "extra.json").write_text("{}")
    world.server.content.history[NEEDS_REPO] = {head: "New", **world.server.content.history[NEEDS_REPO]}

    outlook = look(world)

    assert outlook.advice == "current"
    assert (state(outlook, NEEDS_REPO).behind, state(outlook, NEEDS_REPO).head) == (1, head)
    assert state(outlook, NEEDS_REPO).changes.added == ("tokenizer/extra.json",)


def test_need_whose_head_cannot_be_told(world: Upstream) -> None:
    """Where a need's branch is changes no advice, so not to know it is said and keeps nothing up."""
    world.commit_source("Say more")
    world.server.fault(path=f"/api/models/{NEEDS_REPO}/revision/main", status=503)

    outlook = look(world)

    assert (outlook.advice, outlook.trouble) == ("bump", None)
    assert NEEDS_REPO in (state(outlook, NEEDS_REPO).why or "")


def test_source_that_floats(world: Upstream) -> None:
    """A repo without a commit, whose head does not hold, can be pinned to the newest one that does."""
    text = world.registry.read_text().replace(f"revision: {world.first.source}", "floating: nobody knows")
    world.registry.write_text(text)
    world.commit_source("Rename", renamed=True)

    outlook = look(world)

    assert outlook.advice == "repair"
    assert outlook.search is not None
    assert outlook.search.pair == Pair(world.first.source, world.first.overlay)
    assert state(outlook, SOURCE_REPO).pinned is None


@pytest.mark.parametrize("path", ["*/commits/*", "*/revision/main", "*/tree/*"])
def test_could_not_tell(world: Upstream, path: str) -> None:
    """A Hub that fails now leaves the advice open, never "stay" or "repair"."""
    world.commit_source("Rename", renamed=True)
    world.server.fault(path=path, status=503)

    outlook = look(world)

    assert outlook.advice == "unknown"
    assert isinstance(outlook.trouble, TryAgain)
    assert outlook.model == MODEL


def test_search_could_not_tell(world: Upstream) -> None:
    """A search that cannot read a commit now ends there: the next older pair is not the newest."""
    world.commit_source("Say more")
    world.server.fault(path=f"*/tree/{world.now.source}", status=503)

    with pytest.raises(TryAgain):
        found_in(world)


@pytest.mark.parametrize("repo", [SOURCE_REPO, OVERLAY_REPO, NEEDS_REPO])
def test_search_may_not_look(world: Upstream, repo: str) -> None:
    """A repo that may not be read rules out no pair: whether a newer one holds is not known then."""
    world.commit_source("Say more")
    world.commit_overlay("Say more")
    world.server.fault(path=f"/api/models/{repo}/tree/*", status=403, code="GatedRepo")

    with pytest.raises(Refused) as caught:
        found_in(world)

    assert caught.value.code == "gated"
    assert look(world).advice == "unknown"


@pytest.mark.parametrize("which", ["head", "between"])
def test_login_page_in_place_of_a_listing(world: Upstream, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """What is no Hub says nothing of the commit that was asked for."""
    commit = world.commit_source("Say more").source
    if which == "between":
        world.commit_source("Rename", renamed=True)
    answer = hub_server._Handler._answer

    def login_page(handler: Any, path: str, query: str, fault: Any) -> Any:
        page = hub_server._Answer(200, {}, b"<html>log in</html>")
        return page if path.endswith(f"/tree/{commit}") else answer(handler, path, query, fault)

    monkeypatch.setattr(hub_server._Handler, "_answer", login_page)

    outlook = look(world)

    assert outlook.advice == "unknown"
    assert outlook.trouble is not None
    assert (outlook.trouble.code, outlook.trouble.exit_status) == ("not-a-hub", 6)


def test_gated_source(world: Upstream) -> None:
    """Where one may not look, nothing is advised."""
    world.server.gated = frozenset({SOURCE_REPO})

    outlook = look(world)

    assert outlook.advice == "unknown"
    assert outlook.pinned.status == "skipped"
    assert state(outlook, SOURCE_REPO).head is None
    assert state(outlook, SOURCE_REPO).why


def test_hub_folder(world: Upstream) -> None:
    """A folder in the place of the Hub has heads and no history: the pair of heads is all that is looked at."""
    world.commit_source("One")
    world.commit_source("Two")
    for repo, commit in ((SOURCE_REPO, world.now.source), (OVERLAY_REPO, world.now.overlay)):
        (world.first.root / repo / "main").symlink_to(commit)
    world.server.forget()

    root = world.first.root
    histories = Histories(root, offline=True)
    repos = Repos(root, offline=True, memo=DigestMemo(None, write=False), histories=histories)
    outlook = outdated(world.resolution(), repos)

    assert outlook.advice == "bump"
    assert outlook.search is not None
    assert outlook.search.pair == Pair(world.now.source, world.first.overlay)
    assert state(outlook, SOURCE_REPO).behind is None
    assert world.server.asked() == []
