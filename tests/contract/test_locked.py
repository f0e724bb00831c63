"""Checks of an entry against its lock, and licences that change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.contracts import MODEL, codes, make_hub, next_overlay, next_source, subject_of
from support.hubs import client_of

from overlay.contract.checks.lock_facts import check_facts
from overlay.contract.checks.locked import check_lock
from overlay.contract.facts import lock_model
from overlay.contract.subject import Subject
from overlay.demo.checkpoint import OVERLAY_REPO, SOURCE_REPO
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.planning.recipes import make_plan, stand_in_digest
from overlay.registry.lock import LockedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.contract.finding import Finding
    from overlay.demo.checkpoint import HubFolder
    from overlay.registry.lock import LockedFile

pytestmark = pytest.mark.no_torch

SPEC = "stage-dmd-step-250/adapters/turbo/adapter_spec.json"
SHARD = "h3-base/transformer/diffusion_pytorch_model-00001-of-00002.safetensors"

SCRIPT = "_overlay/materialize.py"
EXPECTED = {"size": 1, "digest": "sha256:" + "0" * 64, "sha256": "0" * 64}


def locked_of(subject: Subject) -> LockedModel:
    return lock_model(subject, make_plan(subject.inventory))


def found_in(subject: Subject) -> list[Finding]:
    """All that is said of the lock, in the order of a check."""
    plan = make_plan(subject.inventory, digest=stand_in_digest) if subject.entry.recipe.name != "python" else None
    return [*check_lock(subject), *check_facts(subject, plan)]


def one(subject: Subject) -> Finding:
    (finding,) = found_in(subject)
    return finding


@pytest.fixture
def hub(tmp_path: Path) -> HubFolder:
    return make_hub(tmp_path)


@pytest.fixture
def subject(hub: HubFolder, tmp_path: Path) -> Subject:
    """A model with a lock that was just made."""
    bare = subject_of(hub, tmp_path)
    return replace(bare, locked=locked_of(bare))


def with_file(locked: LockedModel, path: str, **changes: Any) -> LockedModel:
    """The lock with another word on one file of the source; one without changes is new."""
    source = locked.repos[SOURCE_REPO]
    file: LockedFile = source.files.get(path, source.files[SPEC]).model_copy(update=changes)
    section = source.model_copy(update={"files": {**source.files, path: file}})
    return locked.model_copy(update={"repos": {**locked.repos, SOURCE_REPO: section}})


def line_of(subject: Subject, text: str) -> str:
    """``line:column`` of a text in the registry file."""
    lines = Path(subject.entry.place.file).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if text in line)
    return f"{number}:{lines[number - 1].index(text) + 1}"


def test_a_fresh_lock_has_nothing_to_say(subject: Subject) -> None:
    """What was just locked is as it was locked."""
    assert codes(found_in(subject)) == []


def test_lock_missing(subject: Subject) -> None:
    """An entry that the lock does not name is told with the command that adds it: a warning, for us alone."""
    found = one(replace(subject, locked=None))

    assert found.code == "lock-missing"
    assert found.severities == {"overlay": "warning", "sglang": "note"}
    assert found.fix == f"overlay lock {MODEL}"
    assert found.place == subject.entry.place


def test_lock_missing_is_not_said_of_what_cannot_be_locked(hub: HubFolder, tmp_path: Path) -> None:
    """An entry whose pins float has no lock, and that is said of the pin."""
    text = (
        f"schema_version: 1\nmodels:\n  {MODEL}:\n    source: {{floating: a test}}\n"
        f"    overlay: {{repo: kevin-mi/VDN-H3-overlay, revision: {hub.overlay}}}\n    recipe: {{name: python}}\n"
    )

    assert codes(found_in(subject_of(hub, tmp_path, registry=text))) == []


def test_lock_stale_at_the_pin_that_moved(hub: HubFolder, subject: Subject, tmp_path: Path) -> None:
    """A pin that moved since is named with both commits, at its own line and column."""
    bumped = next_source(hub, "bump")
    moved = subject_of(bumped, tmp_path, locked=subject.locked)
    found = one(moved)

    assert found.code == "lock-stale"
    assert found.severity == "error"
    assert hub.source[:12] in found.message
    assert bumped.source[:12] in found.message
    assert str(found.place).endswith(line_of(moved, "revision: " + bumped.source))
    assert found.fix == f"overlay lock {MODEL}"


def test_lock_stale_at_the_recipe_that_changed(subject: Subject) -> None:
    """Another stage under the same pins is said at the recipe."""
    assert subject.locked is not None
    locked = subject.locked.model_copy(update={"recipe": {"name": "vdn-h3", "stage": "stage-b-step-2000"}})
    found = one(replace(subject, locked=locked))

    assert found.code == "lock-stale"
    assert "stage-b-step-2000" in found.message
    assert found.place == subject.entry.recipe.place
    assert found.place != subject.entry.place


@pytest.mark.parametrize(
    ("path", "changes", "said"),
    [
        (SPEC, {"size": 1}, "different"),
        (SPEC, {"sha256": "0" * 64}, "different"),
        (SHARD, {"size": 1}, "different"),
        ("LICENSE", {"sha256": "0" * 64}, "different"),
        (SHARD, {"sha256": "0" * 64}, "different"),
        (SHARD, {"header": "sha256:" + "0" * 64}, "different"),
        (SHARD, {"header": None}, "different"),
        (SHARD, {"tensors": 1}, "different"),
        ("stage-dmd-step-250/gone.json", {}, "absent"),
    ],
)
def test_lock_differs(subject: Subject, path: str, changes: dict[str, Any], said: str) -> None:
    """A file that the commit lacks or has otherwise than when it was locked is named, at the pin of its repo."""
    assert subject.locked is not None
    found = one(replace(subject, locked=with_file(subject.locked, path, **changes)))

    assert found.code == "lock-differs"
    assert found.severity == "error"
    assert found.data[said] == [path]
    assert path in found.message
    assert found.place == subject.entry.source.place


def test_lock_differs_names_every_file_once(subject: Subject) -> None:
    """All files of a repo that differ are in one finding."""
    assert subject.locked is not None
    locked = with_file(with_file(subject.locked, SPEC, size=1), "nowhere.json")
    found = one(replace(subject, locked=locked))

    assert (found.data["absent"], found.data["different"]) == (["nowhere.json"], [SPEC])
    assert "2 files" in found.message


def test_lock_differs_reads_no_weights_of_a_folder(
    hub: HubFolder, subject: Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a large file in a folder the size has to do: taking its sha256 would read it."""
    monkeypatch.setattr("overlay.contract.facts._LARGEST_READ", 10_000)
    shard = hub.source_folder / SHARD
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    again = subject_of(hub, tmp_path, locked=subject.locked)

    assert codes(found_in(again)) == []


def test_lock_differs_by_the_listing_of_the_hub(
    hub: HubFolder, subject: Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the Hub the listing's sha256 tells a changed shard, and nothing is downloaded for it."""
    shard = hub.source_folder / SHARD
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        inventory = take_inventory(
            subject.inventory.resolution, hub=None, offline=False, memo=DigestMemo(None), allow_floating=False
        )
        found = one(Subject(inventory, subject.locked))

        assert found.data["different"] == [SHARD]
        assert server.payload() == 0


def edited(locked: LockedModel, edit: Callable[[dict[str, Any]], object]) -> LockedModel:
    """The lock with its document changed by hand."""
    document = locked.model_dump(mode="json", exclude_none=True)
    edit(document)
    return LockedModel.model_validate_json(json.dumps(document))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d["repos"][SOURCE_REPO]["files"].pop(SPEC), f"not in the lock: {SPEC}"),
        (lambda d: d["repos"][SOURCE_REPO]["files"].pop(SHARD), f"not in the lock: {SHARD}"),
        (lambda d: d["repos"][SOURCE_REPO].update(licenses=[]), "licenses: none, it has LICENSE"),
        (lambda d: d["repos"][SOURCE_REPO].update(complete=False), "complete: false"),
        (
            lambda d: d["repos"][OVERLAY_REPO]["files"][SCRIPT].update(sha256="0" * 64),
            f"different: {SCRIPT} (sha256)",
        ),
        (
            lambda d: d["repos"][SOURCE_REPO]["files"].update({"README.md": d["repos"][SOURCE_REPO]["files"][SPEC]}),
            "README.md",
        ),
        (lambda d: d.update(location="elsewhere"), "location elsewhere, it is "),
        (lambda d: d["script"].update(sha256="0" * 64), "the overlay's script"),
        (lambda d: d.pop("script"), "the overlay's script"),
        (lambda d: d["adapters"][1].update(meaning="sha256:" + "0" * 64), "adapter turbo: meaning"),
        (lambda d: d["adapters"][0].update(pairs=1, ranks=[3]), "adapter default: pairs, ranks"),
        (lambda d: d["adapters"][0].update(name="other"), "adapter other, which there is not"),
        (lambda d: d["adapters"].pop(0), "no adapter default, which there is"),
        (lambda d: d["adapters"].reverse(), "the order of adapters, it is default, turbo"),
        (
            lambda d: d.update(expected={"rule": "overlay", "writer_version": 1, "files": {}}),
            "expected output: without ",
        ),
        (
            lambda d: d.update(expected={"rule": "overlay", "writer_version": 1, "files": {"more.bin": EXPECTED}}),
            "expected output: more.bin, which no build of these pins makes",
        ),
    ],
)
def test_lock_differs_whatever_was_edited(
    hub: HubFolder,
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    edit: Callable[[dict[str, Any]], object],
    said: str,
) -> None:
    """Locking these pins now would write something else: said, of a folder and of the Hub, with what to find out."""
    assert subject.locked is not None
    locked = edited(subject.locked, edit)
    found = one(replace(subject, locked=locked))
    assert found.code == "lock-differs"
    assert said in found.message
    assert found.fix is not None
    assert found.fix.startswith("find out why first")
    assert found.fix.endswith(f"overlay lock {MODEL}")
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        inventory = take_inventory(
            subject.inventory.resolution, hub=None, offline=False, memo=DigestMemo(None), allow_floating=False
        )
        from_hub = one(Subject(inventory, locked))
        assert from_hub.data == found.data
        assert said in from_hub.message
        assert server.payload() == 0


def test_a_partial_lock_is_the_shipped_ones_alone(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the lock that ships, what is there is compared, and what is not there means nothing."""
    assert subject.locked is not None

    def to_part(document: dict[str, Any]) -> None:
        for section in document["repos"].values():
            section.update(complete=False, licenses=[])
        files = document["repos"][SOURCE_REPO]["files"]
        del files[SPEC], files[SHARD]["header"], files[SHARD]["tensors"], document["script"], document["adapters"][0]

    part = edited(subject.locked, to_part)
    assert {finding.code for finding in found_in(replace(subject, locked=part))} == {"lock-differs"}
    for module in ("overlay.contract.checks.lock_facts", "overlay.registry.load"):
        monkeypatch.setattr(f"{module}.is_packaged", lambda _registry: True)
    assert found_in(replace(subject, locked=part)) == []
    found = one(
        replace(subject, locked=edited(part, lambda d: d["repos"][SOURCE_REPO]["files"][SHARD].update(tensors=1)))
    )
    assert "tensors" in found.message
    assert found.fix is not None
    assert "overlay lock" not in found.fix, "nobody locks what ships with the program"


@pytest.mark.parametrize("against", ["before", "lock"])
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda folder: (folder / "LICENSE").write_text("Pay first.\n"), "LICENSE changed"),
        (lambda folder: (folder / "LICENSE").unlink(), "LICENSE is gone"),
        (lambda folder: (folder / "NOTICE.md").write_text("Look here.\n"), "NOTICE.md is new"),
        (lambda folder: (folder / "README.md").write_text("Other words.\n"), None),
    ],
)
def test_license_changed(
    hub: HubFolder, subject: Subject, tmp_path: Path, edit: Any, said: str | None, against: str
) -> None:
    """A licence file that changes, goes or comes with a bump is a warning at the pin; other words are not."""
    bumped = next_source(hub, "licence")
    edit(bumped.source_folder)
    before = subject if against == "before" else None
    locked = None if against == "before" else subject.locked
    after = subject_of(bumped, tmp_path, locked=locked, before=before)
    found = [finding for finding in found_in(after) if finding.code == "license-changed"]

    assert [finding.data["changes"] for finding in found] == ([[said]] if said else [])
    for finding in found:
        assert finding.severity == "warning"
        assert finding.place == after.entry.source.place


def test_license_unchanged_by_an_overlay_bump(hub: HubFolder, subject: Subject, tmp_path: Path) -> None:
    """Licences of repos that stay where they are have not changed."""
    after = subject_of(next_overlay(hub, "bump"), tmp_path, before=subject, locked=subject.locked)

    assert codes(found_in(after)) == ["lock-stale"]


def test_license_of_an_incomplete_lock_says_nothing(hub: HubFolder, subject: Subject, tmp_path: Path) -> None:
    """A lock that has only some files of a repo does not know which licences there were."""
    assert subject.locked is not None
    repos = {
        name: section.model_copy(update={"complete": False, "licenses": ()})
        for name, section in subject.locked.repos.items()
    }
    bumped = next_source(hub, "licence")
    after = subject_of(bumped, tmp_path, locked=subject.locked.model_copy(update={"repos": repos}))

    assert codes(found_in(after)) == ["lock-stale"]
