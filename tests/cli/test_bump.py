"""`overlay outdated` and `overlay bump` in a project: what is printed, what is written, and what stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import MODEL, edit_json
from support.upstream import SPEC, Upstream, upstream_hub

from overlay.cli._main import run
from overlay.consumers.sglang import overlay_fingerprint
from overlay.demo.checkpoint import NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.registry.lock import read_lock
from overlay.upkeep.search import search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.no_torch

OTHER = "acme/other"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """A project that pins the only commits there are, locked."""
    with upstream_hub(tmp_path, monkeypatch) as upstream:
        monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
        monkeypatch.chdir(upstream.project)
        yield upstream


@pytest.fixture
def locked(world: Upstream) -> Upstream:
    """The same, with its lock written."""
    assert run(["lock", "--quiet"]) == 0
    world.server.forget()
    return world


def said(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> str:
    """What a command prints on stdout."""
    capsys.readouterr()
    assert run(list(args)) == status
    return capsys.readouterr().out


def pins(world: Upstream) -> tuple[str | None, str | None]:
    entry = world.resolution().entry
    return entry.source.revision, entry.overlay.revision if entry.overlay else None


# outdated


def test_outdated_says_that_staying_is_safe(
    locked: Upstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename is named, and that the pins are safe; with --exit-code the status says that somebody should look."""
    locked.commit_source("Rename", renamed=True)

    out = said(capsys, "outdated")

    assert "stay on the pins: safe" in out
    assert "1 commit behind" in out
    assert f"{locked.first.source[:12]} → {locked.now.source[:12]}" in out
    assert "at the heads: file-renamed: " in out
    assert f"→ stage-dmd-step-250/adapters/turbo/{SPEC}" in out
    said(capsys, "outdated", "--exit-code", status=1)
    [finding] = [line for line in out.splitlines() if "at the heads: " in line]
    monkeypatch.setattr("overlay.cli._outdated.terminal_width", lambda: 80)
    shown = said(capsys, "outdated")
    assert finding not in shown  # on a terminal its words are on lines of that width
    assert " ".join(finding.split()) in " ".join(shown.split())


def test_outdated_advises_the_pair(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """The short command that is advised, and the one with all forty digits in the document, go to the pair shown."""
    locked.commit_source("Rename", renamed=True)
    locked.commit_overlay("Ask for the new name", spec=SPEC)

    out = said(capsys, "outdated")
    [model] = json.loads(said(capsys, "outdated", "--json"))["models"]

    assert f"  newest that hold: source {locked.now.source[:12]}, overlay {locked.now.overlay[:12]}\n" in out
    assert f"  advice: overlay bump {MODEL}\n" in out
    assert model["pair"] == {"source": locked.now.source, "overlay": locked.now.overlay}
    command = model["command"]
    assert command == f"overlay bump {MODEL} --source-to {locked.now.source} --overlay-to {locked.now.overlay}"
    assert "would-bump" in said(capsys, "bump", MODEL, "--dry-run")
    said(capsys, *command.split()[1:])
    assert pins(locked) == (locked.now.source, locked.now.overlay)
    assert "at the heads" in said(capsys, "outdated", "--exit-code")


def test_outdated_as_json(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """The document has everything that the text says; what was fetched is counted, and no weights are among it."""
    locked.commit_source("Rename", renamed=True)

    [model] = document("outdated", "outdated")["models"]

    assert (model["advice"], model["attention"], model["command"], model["pairs"]) == ("stay", True, None, 1)
    assert model["reason"].startswith("file-renamed: ")
    assert model["heads"]["status"] == "failed"
    assert model["pinned"]["status"] == "passed"
    assert {Path(old).name: Path(new).name for old, new in model["repos"][0]["renamed"].items()} == {
        "adapter_config.json": SPEC
    }
    assert locked.server.payload() == 0


def test_outdated_counts_what_it_fetches(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """The bytes that are said are those that the server sent."""
    locked.commit_source("Say more")
    locked.server.forget()

    found = document("outdated", "outdated")

    assert found["bytes_fetched"] == sum(request.sent for request in locked.server.asked())


def test_outdated_writes_nothing(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the registry nor the lock changes."""
    before = {path: path.read_bytes() for path in locked.project.iterdir()}
    locked.commit_source("Say more")

    said(capsys, "outdated")

    assert {path: path.read_bytes() for path in locked.project.iterdir()} == before


def test_outdated_could_not_tell(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A Hub that fails now has a status of its own, and the document says why."""
    locked.server.fault(path="*/revision/main", status=503)

    [model] = document("outdated", "outdated", status=5)["models"]

    assert model["advice"] == "unknown"
    assert model["trouble"]["status"] == 5


def test_outdated_says_trouble_once(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Why nothing can be told is said once a model, however many of its repos it keeps from being asked."""
    out = said(capsys, "outdated", "--offline", status=3)

    assert out.count("head not told\n") == 3
    assert out.count("not told[not-cached]: ") == 1
    assert "this run makes no request" not in out


def test_outdated_of_a_pin_that_is_gone(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit that the Hub has no more is called so beside its repo, and what is right is one command away."""
    locked.commit_source("Say more")
    shutil.rmtree(locked.first.source_folder)
    del locked.server.content.history[SOURCE_REPO][locked.first.source]

    out = said(capsys, "outdated", "--exit-code", status=1)

    assert f"{locked.first.source[:12]}, vanished → {locked.now.source[:12]}" in out
    assert f"  advice: overlay bump {MODEL}\n" in out
    assert "the pins do not hold: vanished: " in said(capsys, "bump", MODEL)
    assert pins(locked) == (locked.now.source, locked.first.overlay)


def test_outdated_knows_only_models(locked: Upstream) -> None:
    """What is not in the registry is refused."""
    assert run(["outdated", "acme/none"]) == 2
    assert locked.server.asked() == []


def test_outdated_in_an_empty_project(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A registry without models of its own has nothing to look after; models below it are looked at by name."""
    world.registry.write_text("schema_version: 1\nmodels: {}\n")

    assert "has no models of its own" in said(capsys, "outdated", "--exit-code")
    assert world.server.asked() == []
    assert MODEL in said(capsys, "outdated", MODEL)


def test_outdated_offline(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """Without requests nothing is known of upstream, and that is no advice."""
    [model] = document("outdated", "outdated", "--offline", status=3)["models"]

    assert (model["advice"], model["attention"]) == ("unknown", False)
    assert locked.server.asked() == []


# bump


def test_bump_changes_three_values(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """Revisions and fingerprint become those of the newest pair that holds; other bytes stay; the lock follows."""
    text = locked.registry.read_text().replace("models:", "# Why: ünderstood.\nmodels:   # all\n")
    locked.registry.write_text(text)
    locked.commit_source("Rename", renamed=True)
    locked.commit_overlay("Ask for the new name", spec=SPEC)

    found = document("bump", "bump", MODEL)

    first, now = locked.first, locked.now
    old_print, new_print = overlay_fingerprint(first.overlay_folder), overlay_fingerprint(now.overlay_folder)
    expected = text.replace(first.source, now.source).replace(first.overlay, now.overlay).replace(old_print, new_print)
    assert locked.registry.read_text() == expected
    lock = read_lock(Path(found["lock"]))
    assert lock is not None
    assert lock.models[MODEL].differences(locked.resolution().entry) == ()
    [model] = found["models"]
    assert model["result"] == "bumped"
    assert [(pin["role"], pin["before"], pin["after"]) for pin in model["pins"]] == [
        ("source", first.source, now.source),
        ("overlay", first.overlay, now.overlay),
    ]
    assert model["check"]["cost"]["downloaded"] == 0
    assert locked.server.payload() == 0


def test_bumped_project_passes_its_check(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """What a bump leaves is what `check` wants, lock included."""
    locked.commit_source("Say more")

    out = said(capsys, "bump", "--all")

    assert "cost  0 bytes" in out
    assert "registry.yaml and registry.lock written" in out
    assert "lock-" not in said(capsys, "check")


def test_bump_stays_where_nothing_holds(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a newer pair that holds it says why, changes nothing, and has done its work."""
    before = {path: path.read_bytes() for path in locked.project.iterdir()}
    locked.commit_source("Rename", renamed=True)

    out = said(capsys, "bump", MODEL)

    assert "stays" in out
    assert SPEC in out
    assert {path: path.read_bytes() for path in locked.project.iterdir()} == before


def test_bump_at_the_heads(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """At the heads there is nothing to do, by name too."""
    for args in ([], ["--source-to", locked.first.source[:8], "--overlay-to", "main"]):
        found = document("bump", "bump", MODEL, *args)
        assert [model["result"] for model in found["models"]] == ["current"]
        assert found["lock"] is None


def test_back_from_a_bump_that_broke(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """Where the pins do not hold, bump says why and goes back past them to what did, as outdated advises."""
    locked.commit_source("Rename", renamed=True)
    text = locked.registry.read_text()
    locked.registry.write_text(text.replace(locked.first.source, locked.now.source))

    [advice] = document("outdated", "outdated", "--exit-code", status=1)["models"]
    [would] = document("bump", "bump", MODEL, "--dry-run")["models"]
    [done] = document("bump", "bump", MODEL)["models"]

    assert (advice["advice"], advice["pair"]["source"]) == ("repair", locked.first.source)
    assert advice["command"] == f"overlay bump {MODEL} --source-to {locked.first.source}"
    assert (would["result"], done["result"]) == ("would-bump", "bumped")
    assert done["reason"].startswith("the pins do not hold: file-renamed: ")
    assert [pin["after"] for pin in done["pins"]] == [locked.first.source]
    assert (done["pinned"]["status"], done["check"]["status"]) == ("failed", "passed")
    assert locked.registry.read_text() == text


def test_bump_says_that_the_pins_do_not_hold(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the reason, where it goes, and afterwards the check passes."""
    locked.commit_source("Rename", renamed=True)
    locked.registry.write_text(locked.registry.read_text().replace(locked.first.source, locked.now.source))

    advice = said(capsys, "outdated")
    out = said(capsys, "bump", MODEL)

    assert "repair: the pins do not hold" in advice
    assert f"  newest that hold: source {locked.first.source[:12]}, overlay {locked.first.overlay[:12]}\n" in advice
    assert f"  advice: overlay bump {MODEL}\n" in advice
    assert "  the pins do not hold: file-renamed: " in out
    assert f"{locked.now.source[:12]} → {locked.first.source[:12]}" in out
    said(capsys, "check")


def test_nothing_holds(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the pins do not hold and nothing else does, that is broken: said with the reason, and status 1."""
    locked.commit_source("Rename", renamed=True)
    locked.server.content.history[SOURCE_REPO] = {locked.now.source: "First"}
    locked.registry.write_text(locked.registry.read_text().replace(locked.first.source, locked.now.source))
    before = locked.registry.read_bytes()

    out = said(capsys, "bump", MODEL, status=1)
    [model] = json.loads(said(capsys, "bump", MODEL, "--json", status=1))["models"]
    advice = said(capsys, "outdated", "--exit-code", status=1)

    assert f"{MODEL}  broken\n  the pins do not hold: file-renamed: " in out
    assert "; no other pair of commits holds (0 looked at)" in out
    assert (model["result"], model["pins"], model["pinned"]["status"]) == ("broken", [], "failed")
    assert "  advice: none; no other pair of commits holds (0 looked at)\n" in advice
    assert locked.registry.read_bytes() == before


@pytest.mark.parametrize("args", [[], ["--overlay-to", "main"]], ids=["newest", "named"])
def test_bump_corrects_a_fingerprint(
    locked: Upstream, args: list[str], document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A fingerprint of other files is written anew where the pins stay, and nothing else changes."""
    text = locked.registry.read_text()
    right = overlay_fingerprint(locked.first.overlay_folder)
    locked.registry.write_text(text.replace(right, "0" * 64))

    [advice] = document("outdated", "outdated", "--exit-code", status=1)["models"]
    shown = said(capsys, "outdated")
    found = document("bump", "bump", MODEL, *args)

    assert (advice["advice"], advice["command"]) == ("repair", f"overlay bump {MODEL}")
    assert "repair: the fingerprint is of other files" in shown
    [model] = found["models"]
    assert (model["result"], model["pins"], model["fingerprint"]) == ("bumped", [], right)
    assert found["lock"]
    assert locked.registry.read_text() == text
    assert "at the heads" in said(capsys, "outdated", "--exit-code")


def test_bump_of_the_source_corrects_a_fingerprint_too(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong fingerprint beside a pin that stays keeps nothing from moving, and is right afterwards."""
    right = overlay_fingerprint(locked.first.overlay_folder)
    locked.registry.write_text(locked.registry.read_text().replace(right, "0" * 64))
    locked.commit_source("Say more")

    out = said(capsys, "bump", MODEL)

    assert f"the overlay's fingerprint is {right[:12]}" in out
    assert pins(locked) == (locked.now.source, locked.first.overlay)
    assert locked.resolution().entry.overlay_fingerprint == right


def test_bump_adds_no_fingerprint(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry without one, which a bot may keep up, stays without, and without the version that goes with one."""
    fingerprint = f", fingerprint: {overlay_fingerprint(locked.first.overlay_folder)}"
    text = locked.registry.read_text().replace(locked.first.overlay, locked.commit_overlay("Say more").overlay)
    assert fingerprint in text
    locked.registry.write_text(text.replace(fingerprint, ""))
    before = locked.now.overlay
    locked.commit_overlay("Another version of the script")
    edit_json(locked.now.overlay_folder / MANIFEST_PATH, lambda manifest: manifest.update(materializer_version="v4"))

    said(capsys, "bump", MODEL)

    assert locked.registry.read_text() == text.replace(fingerprint, "").replace(before, locked.now.overlay)


def test_stay_named_where_the_pins_do_not_hold(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """The commits that are pinned are not right because they are named."""
    locked.commit_source("Rename", renamed=True)
    locked.registry.write_text(locked.registry.read_text().replace(locked.first.source, locked.now.source))

    assert "error[file-renamed]" in said(capsys, "bump", MODEL, "--source-to", "main", status=1)


def test_bump_to_a_broken_target(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit that was named and whose contract is broken is not written; the finding and the status say so."""
    before = {path: path.read_bytes() for path in locked.project.iterdir()}
    locked.commit_source("Rename", renamed=True)

    out = said(capsys, "bump", MODEL, "--source-to", "main", status=1)

    assert "error[file-renamed]" in out
    assert "not written" in out
    assert {path: path.read_bytes() for path in locked.project.iterdir()} == before


def test_bump_to_the_beginning_of_a_commit(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A few digits are accepted, forty are written; what is not named stays."""
    middle = locked.commit_source("One").source
    locked.commit_source("Two")
    locked.commit_overlay("Say more")

    said(capsys, "bump", MODEL, "--source-to", middle[:10])

    assert pins(locked) == (middle, locked.first.overlay)


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ([], 2),
        ([MODEL, "--all"], 2),
        (["--all", "--source-to", "main"], 2),
        ([MODEL, "--source-to", ""], 2),
        ([MODEL, "--overlay-to", ""], 2),
        (["--all", "--source-to", ""], 2),
        ([MODEL, "--source-to", "ffff"], 2),
        ([MODEL, "--source-to", "v1.0"], 2),
        (["acme/none"], 2),
        ([MODEL, "--offline"], 3),
    ],
)
def test_bump_refuses(locked: Upstream, args: list[str], status: int) -> None:
    """What makes no sense, and what cannot be known, changes nothing."""
    before = locked.registry.read_bytes()

    assert run(["bump", *args]) == status
    assert locked.registry.read_bytes() == before


def test_an_entry_that_changes_meanwhile_is_left_alone(
    locked: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was checked is what is written: an edit that was made while the Hub was asked is not bumped over."""
    locked.commit_source("A card")
    text = locked.registry.read_text()
    edited = text.replace("stage-dmd-step-250", "stage-b-step-2000")

    def edit_and_check(*args: Any, **options: Any) -> Any:
        locked.registry.write_text(edited)
        return search(*args, **options)

    monkeypatch.setattr("overlay.cli._bump.search", edit_and_check)

    assert run(["bump", MODEL]) == 1
    assert "error[registry-changed]" in capsys.readouterr().err
    assert locked.registry.read_text() == edited


def test_what_cannot_be_edited_is_left_alone(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A section in flow style that would need another key is refused at its place, and the file stays."""
    before = locked.registry.read_bytes()
    locked.commit_overlay("Another version of the script")
    edit_json(locked.now.overlay_folder / MANIFEST_PATH, lambda manifest: manifest.update(materializer_version="v4"))

    assert run(["bump", MODEL]) == 2

    assert "error[cannot-edit]" in capsys.readouterr().err
    assert locked.registry.read_bytes() == before


def test_bump_from_a_hub_folder(locked: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the place of the Hub is followed to where its links `main` lead, without a request."""
    locked.commit_source("Say more")
    root = locked.first.root
    for repo, commit in ((SOURCE_REPO, locked.now.source), (OVERLAY_REPO, locked.now.overlay)):
        (root / repo / "main").symlink_to(commit)

    out = said(capsys, "bump", MODEL, "--hub", str(root))

    assert "bumped" in out
    assert pins(locked) == (locked.now.source, locked.first.overlay)
    assert locked.server.asked() == []


@pytest.fixture
def two(locked: Upstream) -> Upstream:
    """A second model in the project, of the same files under another name."""
    (locked.first.root / OTHER).parent.mkdir()
    (locked.first.root / OTHER).symlink_to(locked.first.source_folder.parent)
    entry = locked.registry.read_text().partition("models:\n")[2].replace(MODEL, OTHER)
    locked.registry.write_text(locked.registry.read_text() + entry)
    assert run(["lock", "--quiet"]) == 0
    locked.commit_source("Say more")
    locked.server.content.history[OTHER] = locked.server.content.history[MODEL]
    return locked


def test_bump_all(two: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """All models of the file move in one write, each to what it needs, and are locked together."""
    found = document("bump", "bump", "--all")

    assert [(model["model"], model["result"]) for model in found["models"]] == [(MODEL, "bumped"), (OTHER, "bumped")]
    assert two.registry.read_text().count(two.now.source) == 2
    lock = read_lock(Path(found["lock"]))
    assert lock is not None
    assert {model: locked.repos[model].revision for model, locked in lock.models.items()} == {
        MODEL: two.now.source,
        OTHER: two.now.source,
    }


def test_trouble_with_one_model_does_not_hold_up_the_others(
    two: Upstream, document: Callable[..., dict[str, Any]]
) -> None:
    """What can be told is written; for the rest there is a status."""
    two.server.fault(path=f"/api/models/{OTHER}/revision/main", status=503)

    found = document("bump", "bump", "--all", status=5)

    assert [(model["model"], model["result"]) for model in found["models"]] == [(MODEL, "bumped"), (OTHER, "unknown")]
    assert two.registry.read_text().count(two.now.source) == 1


def test_dry_run_writes_nothing(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A dry run says the same, and leaves registry and lock."""
    before = {path: path.read_bytes() for path in locked.project.iterdir()}
    locked.commit_source("Say more")

    found = document("bump", "bump", MODEL, "--dry-run")

    assert found["dry_run"]
    assert [model["result"] for model in found["models"]] == ["would-bump"]
    assert {path: path.read_bytes() for path in locked.project.iterdir()} == before


def test_could_not_tell_is_no_reason_to_stay(locked: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A Hub that fails now has a status of its own; nothing is written."""
    before = locked.registry.read_bytes()
    locked.commit_source("Say more")
    locked.server.fault(path=f"*/tree/{locked.now.source}", status=503)

    [model] = document("bump", "bump", MODEL, status=5)["models"]

    assert (model["result"], model["trouble"]["status"]) == ("unknown", 5)
    assert locked.registry.read_bytes() == before


def test_packaged_entry_is_overridden(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that only the shipped registry has is bumped by an entry of the project, which says no more than that."""
    assert world.first.source == "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14"  # as the shipped registry has it
    world.registry.write_text("schema_version: 1\nmodels: {}  # none yet\n")
    world.commit_source("Say more")

    world.commit_overlay("Say more")  # the shipped fingerprint is of the published files, not of the made ones

    said(capsys, "bump", MODEL)

    assert world.registry.read_text() == (
        f"schema_version: 1\nmodels:  # none yet\n  {MODEL}:\n    source:\n      revision: {world.now.source}\n"
        f"    overlay:\n      revision: {world.now.overlay}\n"
        f"      fingerprint: {overlay_fingerprint(world.now.overlay_folder)}\n"
    )
    assert world.resolution().entry.needs[0].pin.revision == NEEDS_REVISION


def test_shipped_registry_is_not_edited(
    world: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a registry of one's own there is nothing to write to, and the way to one is said."""
    monkeypatch.chdir(world.root)

    assert run(["bump", MODEL]) == 2
    assert "overlay init" in capsys.readouterr().err


def test_interrupted_between_registry_and_lock(
    locked: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ended after the registry was written, a bump leaves what `check` calls stale and `lock` repairs."""
    locked.commit_source("Say more")

    def killed(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("overlay.cli._project.lock", killed)
        assert run(["bump", MODEL]) == 130

    assert pins(locked)[0] == locked.now.source
    assert "error[lock-stale]" in said(capsys, "check", status=1)
    said(capsys, "lock")
    assert "lock-stale" not in said(capsys, "check")


def test_lock_that_fails_is_named(
    locked: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the lock cannot be written after the registry was, the command that makes up for it is said."""
    from overlay.errors import TryAgain

    locked.commit_source("Say more")

    def failing(*_args: object, **_options: object) -> None:
        raise TryAgain("gone", code="connection-lost")

    monkeypatch.setattr("overlay.cli._project.lock", failing)

    assert run(["bump", MODEL]) == 5
    assert f"overlay lock {MODEL}" in capsys.readouterr().err
