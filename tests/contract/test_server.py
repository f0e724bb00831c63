"""What a server that is given a model's name will look for: key A, and B is what was built."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.contracts import MODEL, codes, edit_json, make_hub, next_overlay, subject_of
from support.hubs import client_of

from overlay.consumers import sglang
from overlay.consumers.launch import exported
from overlay.consumers.server import parse_server
from overlay.contract.check import check
from overlay.contract.checks.look import Warmed
from overlay.contract.checks.server import check_server
from overlay.contract.finding import CODES
from overlay.contract.subject import Subject
from overlay.errors import NotHere
from overlay.fingerprint import DigestMemo
from overlay.hub import open_repo, take_inventory
from overlay.hub.lock_repo import LockRepo
from overlay.hub.serving import Branch
from overlay.planning.location import overlay_identity
from overlay.registry import load_registry, resolve
from overlay.registry.variables import SGLANG_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.demo.checkpoint import HubFolder
    from overlay.hub import Repo
    from overlay.registry import Pin

pytestmark = pytest.mark.no_torch

MANIFEST = "_overlay/overlay_manifest.json"
NEWEST = "sglang==0.5.23"
NOTHING = Warmed()


def findings_of(
    subject: Subject,
    server: str = NEWEST,
    warmed: Warmed = NOTHING,
    *,
    override: bool = False,
    hub: Path | None = None,
) -> list[Finding]:
    """What the check of a server finds."""

    def open_other(pin: Pin) -> Repo:
        if hub is None:
            raise NotHere("not on this host", code="offline")
        return open_repo(pin, hub=hub, offline=True, memo=DigestMemo(None, write=False), allow_floating=True)

    return list(check_server(subject, parse_server(server, with_override=override), warmed, open_other))


def location_of(subject: Subject, server: str = NEWEST, *, override: bool = False) -> str:
    """Where a build for a server is."""
    entry = sglang.for_server(subject.entry, parse_server(server, with_override=override))
    assert subject.inventory.overlay is not None
    assert subject.manifest is not None
    return overlay_identity(entry, subject.inventory.overlay, subject.manifest).location_name


def another_overlay(hub: HubFolder) -> HubFolder:
    """A newer commit of the overlay than the one that is built in."""
    bumped = next_overlay(hub, "newer")
    edit_json(bumped.overlay_folder / MANIFEST, lambda it: it.update(materializer_version="v2"))
    return bumped


def test_the_pins_of_the_table_are_looked_for_and_built(tmp_path: Path) -> None:
    """With the table's overlay only the source is left open; what is there is found."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    warmed = Warmed("/cache", frozenset({location_of(subject)}))
    finds, not_told = findings_of(subject, warmed=warmed)
    assert codes([finds, not_told]) == ["server-finds", "source-not-told"]
    looked = "; whether the Hub cache has what it asks for before that was not looked at"
    assert finds.message == f"{NEWEST} finds {location_of(subject)} in /cache{looked}"
    assert finds.severity == "note"


def test_with_the_export_everything_is_told(tmp_path: Path) -> None:
    """A server that is told the source's commit too asks for nothing that moves."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    warmed = Warmed("/cache", frozenset({location_of(subject, override=True)}))
    assert codes(findings_of(subject, warmed=warmed, override=True)) == ["server-finds"]


def test_a_server_with_another_overlay_built_in(tmp_path: Path) -> None:
    """It looks for A and B is built; both are named, and in which field they differ; the fix is the export."""
    hub = make_hub(tmp_path)
    there, here = subject_of(hub, tmp_path), subject_of(another_overlay(hub), tmp_path)
    [finding, *_] = findings_of(here, hub=hub.root)
    assert (finding.code, finding.severities) == ("server-looks-elsewhere", {"overlay": "note", "sglang": "error"})
    assert finding.data["looks_for"] == location_of(there)
    assert finding.data["built"] == location_of(here)
    assert f"will look for {location_of(there)}, and {location_of(here)} is what is built here" in finding.message
    assert "overlay_revision 7de18275dddf instead of" in finding.message
    assert "materializer_version v1 instead of v2" in finding.message
    assert finding.fix == f"overlay prewarm {MODEL} --stage-source --for {NEWEST} --with-override"
    assert "server-looks-elsewhere" not in codes(findings_of(here, hub=hub.root, override=True))


def test_the_overlay_that_is_built_in_is_not_here(tmp_path: Path) -> None:
    """Without its files the directory has no name yet, and that the pins differ is told all the same."""
    here = subject_of(another_overlay(make_hub(tmp_path)), tmp_path)
    found = findings_of(here, warmed=Warmed("/cache"))
    assert codes(found) == ["server-looks-elsewhere"]
    assert "will look for another directory" in found[0].message
    assert found[0].data["looks_for"] is None


@pytest.mark.parametrize("version", ["0.5.10", "0.5.12", "0.5.19"])
def test_a_release_that_does_not_know_the_model(tmp_path: Path, version: str) -> None:
    """Without the export such a server looks nothing up, and that is all there is to say."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    [finding] = findings_of(subject, f"sglang=={version}", Warmed("/cache"))
    assert (finding.code, finding.severity) == ("server-unknown", "error")
    assert finding.fix == f"overlay prewarm {MODEL} --stage-source --for sglang=={version} --with-override"


def test_an_entry_without_an_overlay(tmp_path: Path) -> None:
    """No server has a key for it: it is served by path."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    resolution = replace(subject.inventory.resolution, entry=replace(subject.entry, overlay=None))
    bare = Subject(replace(subject.inventory, resolution=resolution))
    [finding] = findings_of(bare, override=True)
    assert (finding.code, finding.fix) == ("server-unknown", f"overlay env {MODEL} --for {NEWEST}")


def test_nothing_is_where_the_server_looks(tmp_path: Path) -> None:
    """The directory, the root and what of the model is there are named; other models do not count."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    plain, told = location_of(subject), location_of(subject, override=True)
    warmed = Warmed("/cache", frozenset({plain, "acme__other-0123456789abcdef"}))
    [finding] = findings_of(subject, warmed=warmed, override=True)
    assert (finding.code, finding.severities) == ("server-not-warmed", {"overlay": "note", "sglang": "warning"})
    assert finding.message.endswith(f"will look for {told} in /cache, which has {plain}")
    assert finding.fix == f"overlay prewarm {MODEL} --stage-source --for {NEWEST} --with-override"
    [finding] = findings_of(subject, warmed=Warmed("/cache"), override=True)
    assert "nothing of this model" in finding.message


def test_a_host_without_a_cache_is_not_judged(tmp_path: Path) -> None:
    """Where nothing is to be served, nothing is missing."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    assert "server-not-warmed" not in codes(findings_of(subject))


def test_an_old_release_looks_in_another_root(tmp_path: Path) -> None:
    """Why nothing is there: what moved the root for us does not for it."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    found = findings_of(subject, "sglang==0.5.12", Warmed("/cache", ignores_xdg=True), override=True)
    assert any("sglang==0.5.12 does not go by XDG_CACHE_HOME" in finding.message for finding in found)


@pytest.mark.parametrize(
    ("server", "way", "why"),
    [
        (NEWEST, "plain", "neither its table nor the overlay's manifest names a commit"),
        ("sglang==0.5.21", "plain", "this release passes on no commit of a source"),
        ("sglang==0.5.21", "export", "this release passes on no commit of a source"),
        ("sglang==0.5.22", "export", None),
        (NEWEST, "export", None),
    ],
)
def test_the_source_is_taken_from_main(tmp_path: Path, server: str, way: str, why: str | None) -> None:
    """The pin of the source is told from 0.5.22 on, and then only by the export."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    found = [item for item in findings_of(subject, server, override=way == "export") if item.code == "source-not-told"]
    assert [why in item.message for item in found] == ([True] if why else [])
    assert all("at main before it looks for the directory" in item.message for item in found)


def test_the_manifest_may_name_the_source(tmp_path: Path) -> None:
    """Newer releases take the commit from there, older ones do not read it."""
    hub = make_hub(tmp_path)
    edit_json(hub.overlay_folder / MANIFEST, lambda it: it.update(source_revision="5" * 40))
    subject = subject_of(hub, tmp_path)
    assert findings_of(subject, warmed=Warmed("/cache", frozenset({location_of(subject)}))) == []  # nor is it found
    assert "source-not-told" in codes(findings_of(subject, "sglang==0.5.21"))


def test_a_folder_that_is_the_source_is_looked_up_nowhere(tmp_path: Path) -> None:
    """Wherever main of its repo is, and whatever a server would ask for."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    Branch(MODEL, "main").create("6" * 40)
    assert codes(findings_of(subject)) == ["branch-elsewhere", "source-not-told"]
    resolution = replace(subject.inventory.resolution, source_folder=tmp_path)
    assert findings_of(Subject(replace(subject.inventory, resolution=resolution))) == []


@pytest.mark.parametrize(("commit", "expected"), [("6" * 40, ["branch-elsewhere"]), (None, []), ("", [])])
def test_main_in_the_hub_cache_is_elsewhere(tmp_path: Path, commit: str | None, expected: list[str]) -> None:
    """A branch at another commit than the pin is told, with its file; one that is not there, or agrees, is not."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    if commit is not None:
        branch = Branch(MODEL, "main")
        branch.file.parent.mkdir(parents=True)
        branch.file.write_text(commit or str(subject.entry.source.revision))
    found = [item for item in findings_of(subject) if item.code != "source-not-told"]
    assert codes(found) == expected
    for finding in found:
        assert finding.data["file"].endswith(f"models--{MODEL.replace('/', '--')}/refs/main")
        assert finding.data["commit"] == commit
    assert findings_of(subject, override=True) == []  # which asks for commits alone


def test_a_branch_that_holds_anything(tmp_path: Path) -> None:
    """What another program wrote there is shown as text of one line."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    branch = Branch(MODEL, "main")
    branch.file.parent.mkdir(parents=True)
    branch.file.write_bytes(b"\x1b[31m\n\xff" + b"x" * 10_000)
    [finding] = [item for item in findings_of(subject) if item.code == "branch-elsewhere"]
    assert finding.message.isprintable()
    assert len(finding.message) < 1000


@pytest.fixture
def hub(tmp_path: Path) -> HubFolder:
    """What is published."""
    return make_hub(tmp_path)


@pytest.fixture
def served(hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Subject]]:
    """The model read through the Hub's client, with a cache of its own."""
    entry = subject_of(hub, tmp_path).inventory.resolution
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hub-cache"):

        def take() -> Subject:
            memo = DigestMemo(None, write=False)
            return Subject(take_inventory(entry, hub=None, offline=False, memo=memo, allow_floating=True))

        yield take


def test_a_snapshot_that_holds_more(served: Callable[[], Subject]) -> None:
    """A file that was fetched beside changes what the server hashes; the weights, which it skips, do not."""
    overlay: Any = served().inventory.overlay
    overlay.fetch(overlay.paths(), None)
    (overlay.snapshot / "more.safetensors").write_bytes(b"")
    assert "snapshot-extras" not in codes(findings_of(served()))
    (overlay.snapshot / ".gitattributes").write_text("*.bin filter=lfs\n")
    [finding] = [item for item in findings_of(served()) if item.code == "snapshot-extras"]
    assert finding.severities == {"overlay": "note", "sglang": "error"}
    assert finding.data["files"] == [".gitattributes"]


@pytest.mark.parametrize("name", ["notes.py", "todo.md", "deep/more.json"])
def test_a_snapshot_that_holds_a_file_that_is_not_of_the_commit(served: Callable[[], Subject], name: str) -> None:
    """A server hashes whatever lies there, also of the kinds that it fetches."""
    overlay: Any = served().inventory.overlay
    overlay.fetch(overlay.paths(), None)
    (overlay.snapshot / name).parent.mkdir(exist_ok=True)
    (overlay.snapshot / name).write_text("x")
    [finding] = [item for item in findings_of(served()) if item.code == "snapshot-extras"]
    assert finding.data["files"] == [name]


class Locked(LockRepo):
    """An overlay as a lock knows it: its small files, and nothing of this host."""

    def __init__(self, repo: Any) -> None:
        self.repo, self.revision, self.name = repo.repo, repo.revision, repo.name
        self.files = {path: repo.read_bytes(path) for path in repo.paths()}

    def paths(self) -> list[str]:
        return list(self.files)

    def read_bytes(self, path: str, _most: int = 0) -> bytes:
        return self.files[path]


@pytest.mark.parametrize("locked", [False, True])
def test_a_changed_file_of_the_overlay_is_not_believed(served: Callable[[], Subject], *, locked: bool) -> None:
    """It has the size of the listing and is another file: fetched again, also where a lock knows what it should be."""
    subject = served()
    overlay: Any = subject.inventory.overlay
    inventory = replace(subject.inventory, overlay=Locked(overlay))
    blob = (overlay.snapshot / "model_index.json").resolve()
    pristine = blob.read_bytes()
    blob.write_bytes(pristine[:-1] + b" ")
    list(
        check_server(
            Subject(inventory) if locked else served(),
            parse_server(NEWEST),
            NOTHING,
            lambda _: served().inventory.overlay,
        )
    )
    assert blob.read_bytes() == pristine
    if locked:
        (overlay.snapshot / "notes.py").touch()
        found = check_server(Subject(inventory), parse_server(NEWEST), NOTHING, lambda _: served().inventory.overlay)
        assert "snapshot-extras" in codes(list(found))


def test_what_is_asked_for_before_is_not_there(served: Callable[[], Subject]) -> None:
    """A server whose directory is here starts only if the Hub's cache has the overlay and the source; both are told."""
    subject = served()
    warmed = Warmed("/cache", frozenset({location_of(subject)}))

    def found() -> Finding:
        [finding] = [item for item in findings_of(served(), warmed=warmed) if item.code != "source-not-told"]
        return finding

    finding = found()
    assert (finding.code, finding.severities) == ("source-not-staged", {"overlay": "note", "sglang": "warning"})
    assert finding.fix == f"overlay prewarm {MODEL} --stage-source --for {NEWEST}"
    [lacks] = finding.data["lacks"]
    assert f"files of {subject.source.name} are not there: " in lacks
    source: Any = subject.source
    source.fetch(source.paths(), None)
    assert found().data["lacks"] == [f"{Branch(MODEL, 'main').file} is not there"]
    Branch(MODEL, "main").create(source.revision)
    assert found().code == "server-finds"
    assert found().message.endswith(" in /cache, and what it asks for before that in the Hub cache")
    next(source.snapshot.rglob("*.safetensors")).resolve().write_bytes(b"")
    assert found().code == "source-not-staged"


def test_a_required_file_that_no_pattern_brings(hub: HubFolder, served: Callable[[], Subject]) -> None:
    """Such a server fetches all anew, and so does staging refuse it: only by path it is served."""
    weights = "stage-b-step-2000/adapters/turbo/adapter_model.safetensors"
    edit_json(hub.overlay_folder / MANIFEST, lambda it: it.update(required_source_files=[weights, "h3-base"]))
    subject = served()
    source: Any = subject.source
    source.fetch(source.paths(), None)
    Branch(MODEL, "main").create(source.revision)
    [finding, _] = findings_of(subject, warmed=Warmed("/cache", frozenset({location_of(subject)})))
    assert (finding.code, finding.fix) == ("source-not-staged", f"overlay env {MODEL} --for {NEWEST}")
    assert [f"no {weights} among" in text for text in finding.data["lacks"]] == [True]


def test_a_server_that_somebody_told_otherwise(tmp_path: Path) -> None:
    """A variable in force is what the server is told, and so its table does not count."""
    hub = make_hub(tmp_path)
    bumped = another_overlay(hub)
    subject = subject_of(bumped, tmp_path)
    registry = next(tmp_path.glob(f"registry-*-{bumped.overlay[:6]}.yaml"))
    told = load_registry(registry, environ={SGLANG_REGISTRY: exported(subject.entry)}, cwd=tmp_path)
    memo = DigestMemo(None, write=False)
    inventory = take_inventory(resolve(MODEL, told), hub=hub.root, offline=True, memo=memo, allow_floating=True)
    warmed = Warmed("/cache", frozenset({location_of(subject, override=True)}))
    assert codes(findings_of(Subject(inventory), warmed=warmed)) == ["server-finds"]


def test_the_other_checks_run_beside(tmp_path: Path) -> None:
    """The report of a model holds what was found of the server, and what is found without one."""
    subject = subject_of(make_hub(tmp_path), tmp_path)

    def of_server(subject: Subject) -> Iterator[Finding]:
        yield from findings_of(subject, "sglang==0.5.12")

    beside, alone = check(subject, of_server=of_server), check(subject)
    assert set(codes(beside.findings)) - set(codes(alone.findings)) == {"server-unknown"}
    assert beside.status == "failed"
    assert beside.compared == alone.compared


def test_only_servers_are_concerned() -> None:
    """What this program builds is sound whatever a server looks for."""
    of_server = [code for code in CODES if code.startswith(("server-", "source-not", "branch-else", "snapshot-"))]
    assert len(of_server) == 8
    assert {CODES[code].overlay for code in of_server} == {"note"}
