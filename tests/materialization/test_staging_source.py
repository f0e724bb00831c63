"""The Hub's cache filled for a server that is given a name, with the Hub's own client as the judge."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from support.checkpoints import copy_hub
from support.models import VDN, write_registry
from support.served import SGLANG, Served, built_from_hub, contents, served

from overlay.consumers.server import parse_server
from overlay.consumers.sglang.asked import asked_of
from overlay.demo.checkpoint import OVERLAY_REPO
from overlay.errors import BrokenInput, CannotWrite, CheckFailed, InvalidUsage, NotHere, OverlayError
from overlay.formats.manifest import Manifest
from overlay.hub.serving import Branch
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.resolve import resolve
from overlay.materialization.serving import by_name
from overlay.materialization.serving.by_name import materialize_by_name, plan_by_name
from overlay.registry.entries import ServerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.demo.checkpoint import HubFolder

OVERRIDE = replace(SGLANG, with_override=True)
NO_PIN = parse_server("sglang==0.5.21")
WHOLE = parse_server("sglang==0.5.18", with_override=True)
METADATA = ["*.json", "*.md", "*.py", "*.txt", "**/*.json", "**/*.md", "**/*.py", "**/*.txt"]
NEVER = ["*.onnx", "*.msgpack"]
MANIFEST = "_overlay/overlay_manifest.json"
OTHER = "c" * 40
UNASKED = "stage-b-step-2000/adapters/turbo/adapter_model.safetensors"


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The model, built already, so that the source is in the Hub's cache as far as a build takes it."""
    with built_from_hub(tmp_path_factory, tmp_path) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Nothing is here yet, and the hub may be changed."""
    with served(copy_hub(tmp_path_factory, "adapter_config.json"), tmp_path) as found:
        yield found


def patterns_of(hub: HubFolder) -> list[str]:
    """Of the source, as the manifest says them."""
    found: list[str] = json.loads((hub.overlay_folder / MANIFEST).read_bytes())["source_allow_patterns"]
    return found


def source_of_server(world: Served, revision: str | None = None, *, narrows: bool = True) -> Path:
    """The source as a server looks for it before anything else: in the cache alone."""
    patterns = patterns_of(world.hub) if narrows else None
    found = snapshot_download(
        VDN, revision=revision, allow_patterns=patterns, ignore_patterns=NEVER, local_files_only=True
    )
    return Path(found)


def overlay_of_server(revision: str | None) -> Path:
    """The overlay as a server without a connection gets it."""
    found = snapshot_download(OVERLAY_REPO, revision=revision, allow_patterns=METADATA, local_files_only=True)
    return Path(found)


def edit_manifest(hub: HubFolder, **fields: Any) -> None:
    """Change fields of the overlay's manifest."""
    path = hub.overlay_folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


def paths_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_a_build_alone_does_not_do_for_a_server_that_is_given_the_name(world: Served) -> None:
    """The client finds no branch, and of the commit not all that a server asks for."""
    for revision in (None, world.hub.source):
        with pytest.raises(LocalEntryNotFoundError):
            source_of_server(world, revision)


def test_the_client_finds_source_and_overlay_without_a_request(world: Served) -> None:
    """By main as by the commit, each file with the hub's bytes; of the overlay just what a server fetches."""
    done, staged = materialize_by_name(VDN, world.options())
    assert done.result == "present"
    world.server.forget()
    source, overlay = source_of_server(world), overlay_of_server(world.hub.overlay)
    assert source == source_of_server(world, world.hub.source)
    assert world.server.requests == []
    assert [
        path
        for path in paths_below(source)
        if (source / path).read_bytes() != (world.hub.source_folder / path).read_bytes()
    ] == []
    published = paths_below(world.hub.overlay_folder)
    assert paths_below(overlay) == [path for path in published if path.endswith((".json", ".md", ".py", ".txt"))]
    assert staged.branches == (str(world.main(VDN)),)
    assert not world.main(OVERLAY_REPO).exists()  # asked for by its commit
    assert scan_cache_dir(world.cache).warnings == []


def test_with_a_connection_it_is_still_no_request(world: Served) -> None:
    """The overlay is asked for by its commit, and the source is looked for in the cache first."""
    materialize_by_name(VDN, world.options())
    world.server.forget()
    overlay = snapshot_download(OVERLAY_REPO, revision=world.hub.overlay, allow_patterns=METADATA)
    assert Path(overlay) == overlay_of_server(world.hub.overlay)
    assert world.server.requests == []


def test_what_the_build_does_not_need_is_fetched_beside_it_and_counted(world: Served) -> None:
    """The bytes are those of the files that a build alone leaves out, each once."""
    blobs = world.storage(VDN) / "blobs"
    before = set(blobs.iterdir())
    _, staged = materialize_by_name(VDN, world.options())
    assert staged.nbytes == sum(blob.stat().st_size for blob in set(blobs.iterdir()) - before) > 0


def test_a_second_run_asks_nothing_and_touches_nothing(world: Served) -> None:
    """With a connection or without one."""
    materialize_by_name(VDN, world.options())
    world.server.forget()
    before = contents(world.cache), contents(world.folder / "root")
    for offline in (False, True):
        done, staged = materialize_by_name(VDN, world.options(offline=offline))
        assert (done.result, staged.nbytes, staged.branches) == ("present", 0, ())
    assert world.server.requests == []
    assert (contents(world.cache), contents(world.folder / "root")) == before


@pytest.mark.slow
def test_an_empty_host_gets_both_and_the_plan_says_so(own: Served) -> None:
    """The dry run counts what the run counts, brings no weight and writes no branch."""
    work, planned = plan_by_name(VDN, own.options())
    assert own.server.payload() == 0
    assert not own.main(VDN).exists()
    done, staged = materialize_by_name(VDN, own.options())
    assert (done.result, done.counters, staged) == ("built", work.counters, planned)
    source_of_server(own)


def test_the_room_of_the_plan_counts_both(own: Served) -> None:
    """What is fetched beside the build comes on top where both lie on one disk."""
    alone = plan(VDN, own.options())
    work, staged = plan_by_name(VDN, own.options())
    assert work.room == alone.room + staged.nbytes
    assert staged.nbytes > 0


def test_a_disk_without_room_for_both_is_refused_before_a_weight_comes(
    own: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte too few of what build and staging need together."""
    work, _ = plan_by_name(VDN, own.options())
    monkeypatch.setattr("overlay.cache.store.free_room", lambda _path: work.room - 1)
    with pytest.raises(CannotWrite) as caught:
        materialize_by_name(VDN, own.options())
    assert (caught.value.code, caught.value.data["needed"]) == ("no-room", work.room)
    assert own.server.payload() == 0


def test_a_hub_cache_on_a_disk_of_its_own_must_have_the_room(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of downloads count there, and the message names the place."""
    monkeypatch.setattr(by_name, "_shares_filesystem", lambda _cache: False)
    work, staged = plan_by_name(VDN, own.options())
    needed = staged.nbytes + sum(item.size for item in work.missing)
    monkeypatch.setattr("overlay.materialization.room.free_room", lambda _path: needed - 1)
    with pytest.raises(CannotWrite, match="to download") as caught:
        materialize_by_name(VDN, own.options())
    assert (caught.value.code, caught.value.data["needed"]) == ("no-room", needed)
    assert own.server.payload() == 0


@pytest.mark.parametrize(
    ("server", "main", "narrows"),
    [(SGLANG, True, True), (OVERRIDE, False, True), (NO_PIN, True, True), (WHOLE, True, False)],
    ids=str,
)
def test_each_release_finds_what_it_asks_for(world: Served, *, server: Any, main: bool, narrows: bool) -> None:
    """Main where it is told no commit or does not pass one on; the whole repo where it asks for no patterns."""
    materialize_by_name(VDN, world.options(server=server))
    assert world.main(VDN).exists() is main
    found = source_of_server(world, None if main else world.hub.source, narrows=narrows)
    weights = [
        path for path in paths_below(world.hub.source_folder) if path.startswith("stage-b") and "tensors" in path
    ]
    assert [(found / path).exists() for path in weights] == [not narrows] * len(weights) != []


def test_a_release_without_the_pin_takes_main_also_with_an_override(world: Served) -> None:
    """It drops the source's commit from what it is told."""
    materialize_by_name(VDN, world.options(server=replace(NO_PIN, with_override=True)))
    assert world.main(VDN).read_text() == world.hub.source


@pytest.mark.parametrize("content", [OTHER, "", "0" * 40 + "\n", "ünclear", "x" * 5000])
def test_a_main_that_says_something_else_is_never_moved(own: Served, content: str) -> None:
    """The finding names the file, what it says, what was expected and a way out; nothing but metadata has come."""
    file = own.set_main(VDN, content)
    before = contents(file.parent)
    with pytest.raises(CheckFailed) as caught:
        materialize_by_name(VDN, own.options())
    error = caught.value
    assert (error.code, error.exit_status) == ("branch-elsewhere", 1)
    pin = f"{VDN}@{own.hub.source[:12]}"
    assert error.message.startswith(f"{file} says {content[:40].strip() or 'nothing'}, and the entry pins {pin}: ")
    assert (error.data["where"], error.data["found"], error.data["expected"]) == (
        str(file),
        content[:200],
        own.hub.source,
    )
    assert error.message.endswith(f"without a connection sglang takes {VDN} from there")
    assert "--with-override" in str(error.hint)
    assert str(error.hint).endswith(f"serve by path: overlay env {VDN} --for sglang")
    with pytest.raises(CheckFailed):
        plan_by_name(VDN, own.options())
    assert contents(file.parent) == before
    assert own.server.payload() == 0
    assert not (own.folder / "root").exists()


def test_a_release_that_passes_no_commit_on_is_not_told_to_override(world: Served) -> None:
    """There is no way by name then but to remove the file."""
    world.set_main(VDN, OTHER)
    with pytest.raises(CheckFailed) as caught:
        materialize_by_name(VDN, world.options(server=NO_PIN))
    assert "--with-override" not in str(caught.value.hint)
    assert "remove the file" in str(caught.value.hint)


def test_the_way_out_works(world: Served) -> None:
    """With the override the server asks for the commit, whatever main is at."""
    file = world.set_main(VDN, OTHER)
    materialize_by_name(VDN, world.options(server=OVERRIDE))
    assert file.read_text() == OTHER
    source_of_server(world, world.hub.source)


def test_a_main_that_leads_there_already_is_left_as_it_is(world: Served) -> None:
    """Not even written anew."""
    before = world.set_main(VDN, world.hub.source).stat()
    _, staged = materialize_by_name(VDN, world.options())
    after = world.main(VDN).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert staged.branches == ()


def test_a_main_that_appears_during_the_build_is_not_moved_either(
    world: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may write it at any time, also between the look at it and the write."""

    def build(*args: Any, **options: Any) -> Any:
        world.set_main(VDN, OTHER)
        return materialize(*args, **options)

    monkeypatch.setattr(by_name, "materialize", build)
    with pytest.raises(CheckFailed, match=OTHER):
        materialize_by_name(VDN, world.options())
    assert world.main(VDN).read_text() == OTHER


@pytest.mark.parametrize("links", [True, False])
def test_a_branch_is_created_whole_and_leaves_nothing_beside_it(
    world: Served, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """With hard links or without; its mode is the umask's; what appeared meanwhile stays."""
    if not links:

        def refuse(*_args: Any) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    before = set(world.storage(VDN).rglob("*"))
    branch = Branch(VDN, "main")
    old = os.umask(0o027)
    try:
        assert branch.create(OTHER)
    finally:
        os.umask(old)
    assert set(world.storage(VDN).rglob("*")) - before == {branch.file.parent, branch.file}
    assert stat.S_IMODE(branch.file.stat().st_mode) == 0o640
    assert not branch.create("d" * 40)
    assert branch.file.read_text() == OTHER
    monkeypatch.setattr(Branch, "commit", lambda _self: None)  # the look comes too early
    branch.create("d" * 40)
    assert branch.file.read_text() == OTHER


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\0b", ""])
def test_a_branch_stays_inside_the_cache(name: str) -> None:
    """Its name may come from a manifest."""
    with pytest.raises(BrokenInput) as caught:
        Branch(VDN, name).commit()
    assert caught.value.code == "unsafe-path"


def test_a_branch_that_cannot_be_written_is_an_error_of_its_place(
    world: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the file and what moves the Hub's cache."""

    def refuse(*_args: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CannotWrite, match="refs/main") as caught:
        Branch(VDN, "main").create(world.hub.source)
    assert caught.value.code == "not-permitted"
    assert "HF_HUB_CACHE" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("choices", "flag"),
    [
        ({"server": None}, "--for"),
        ({"server": parse_server("vllm-omni")}, "--for"),
        ({"hub": Path("/hub")}, "--hub"),
        ({"only": ("transformer",)}, "--only"),
    ],
)
def test_what_names_no_server_or_no_hub_cache_is_refused(world: Served, choices: dict[str, Any], flag: str) -> None:
    """The hint names the option."""
    with pytest.raises(InvalidUsage) as caught:
        materialize_by_name(VDN, world.options(**choices))
    assert caught.value.code == "option-conflict"
    assert flag in str(caught.value.hint)


def test_a_model_that_no_server_looks_up_is_refused(world: Served) -> None:
    """Without an overlay there is no key."""
    registry = write_registry(
        world.folder,
        f"""\
  org/plain:
    source: {{repo: {VDN}, revision: {world.hub.source}}}
    recipe: {{name: lora, base: {{path: h3-base/transformer}}, adapters: [{{path: stage-dmd-step-250/adapters/turbo}}]}}
""",
    )
    with pytest.raises(InvalidUsage) as caught:
        materialize_by_name("org/plain", world.options(registry=registry))
    assert caught.value.code == "no-overlay"
    assert str(caught.value.hint).startswith("serve by path: overlay env ")


@pytest.mark.parametrize(
    ("server", "overlay", "code"),
    [("sglang==0.5.19", None, "server-unknown"), ("sglang", OTHER, "server-looks-elsewhere")],
)
def test_what_the_server_would_not_look_for_is_not_staged(
    world: Served, server: str, overlay: str | None, code: str
) -> None:
    """By the table that it has built in; with an override it is told, and the hint says so."""
    registry = world.folder / "other.yaml"
    text = Path(str(world.options().registry)).read_text()
    registry.write_text(text.replace(world.hub.overlay, overlay) if overlay else text)
    world.server.forget()
    with pytest.raises(CheckFailed) as caught:
        materialize_by_name(VDN, world.options(registry=registry, server=parse_server(server)))
    assert caught.value.code == code
    assert "--with-override" in str(caught.value.hint)
    assert world.server.requests == []


def test_a_source_that_floats_has_no_commit_to_stage(world: Served) -> None:
    """Not even with --allow-floating, which would move main itself."""
    text = world.options().registry.read_text()  # type: ignore[union-attr]
    registry = world.folder / "floating.yaml"
    registry.write_text(text.replace(f"{{revision: {world.hub.source}}}", "{floating: nobody knows}"))
    with pytest.raises(InvalidUsage) as caught:
        materialize_by_name(VDN, world.options(registry=registry, allow_floating=True))
    assert caught.value.code == "floating-pin"
    assert not world.main(VDN).exists()


def test_offline_the_missing_files_are_named(world: Served) -> None:
    """A build needs fewer files than a server asks for."""
    with pytest.raises(NotHere) as caught:
        materialize_by_name(VDN, world.options(offline=True))
    assert caught.value.code == "not-cached"
    assert not world.main(VDN).exists()


def test_offline_without_a_listing_nobody_knows_whether_all_is_there(world: Served) -> None:
    """The client would return such a snapshot whatever is in it."""
    materialize_by_name(VDN, world.options())
    world.main(VDN).unlink()
    listing = world.storage(VDN) / f"trees/{world.hub.source}.json"
    listing.unlink()
    with pytest.raises(NotHere) as caught:
        materialize_by_name(VDN, world.options(offline=True))
    assert caught.value.data["where"] == str(listing)
    assert not world.main(VDN).exists()


def test_a_file_of_a_wrong_size_is_not_taken_for_staged(world: Served) -> None:
    """It is named, as a build would."""
    materialize_by_name(VDN, world.options())
    blob = (source_of_server(world) / "h3-base/audio_vae/config.json").resolve()
    blob.write_bytes(b"{}")
    with pytest.raises(NotHere) as caught:
        materialize_by_name(VDN, world.options())
    assert caught.value.code == "damaged-in-hub-cache"


@pytest.mark.parametrize("offline", [False, True])
def test_what_another_commit_brought_is_linked_and_not_fetched(
    world: Served, tmp_path_factory: pytest.TempPathFactory, *, offline: bool
) -> None:
    """The snapshot is whole for the client, though no weight came for this commit."""
    hub = copy_hub(tmp_path_factory)
    moved = replace(hub, source="e" * 40)
    moved.source_folder.parent.joinpath(hub.source).rename(moved.source_folder)
    materialize_by_name(VDN, world.options())
    with served(moved, world.folder) as bumped:
        bumped.main(VDN).unlink()
        plan_by_name(VDN, bumped.options())  # lists the new commit
        bumped.server.forget()
        done, staged = materialize_by_name(VDN, bumped.options(offline=offline))
        assert (done.result, staged.nbytes) == ("reused", 0)
        assert bumped.server.payload() == 0
        found = source_of_server(bumped)
        assert found.name == moved.source
        link = found / "h3-base/transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
        assert not os.path.isabs(os.readlink(link))  # noqa: PTH117, PTH115 - the text of the link
        assert link.resolve().parent == (bumped.storage(VDN) / "blobs").resolve()
        assert not list(bumped.storage(VDN).glob(".overlay-*"))


def test_beside_another_client_both_get_a_whole_snapshot(own: Served) -> None:
    """Neither trips over what the other writes."""
    failures: list[BaseException] = []

    def other() -> None:
        try:
            snapshot_download(VDN, revision=own.hub.source, allow_patterns=patterns_of(own.hub))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells
            failures.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    materialize_by_name(VDN, own.options())
    thread.join()
    assert failures == []
    source_of_server(own)
    assert scan_cache_dir(own.cache).warnings == []


def test_more_overlay_files_than_a_server_fetches_are_refused(world: Served) -> None:
    """They would enter its fingerprint, and it would look elsewhere: also notes of a kind that it does fetch."""
    for name in (".gitattributes", "notes.py"):
        extra = world.storage(OVERLAY_REPO) / f"snapshots/{world.hub.overlay}/{name}"
        extra.write_text("*.bin filter=lfs")
        with pytest.raises(CheckFailed, match=name) as caught:
            materialize_by_name(VDN, world.options())
        assert caught.value.code == "snapshot-extras"
        extra.unlink()
    assert not world.main(VDN).exists()


def test_a_changed_file_of_the_overlay_is_brought_again_or_refused(world: Served) -> None:
    """It has its size still, and moves the key of a server: without a connection it is named."""
    file = world.storage(OVERLAY_REPO) / f"snapshots/{world.hub.overlay}/model_index.json"
    pristine = file.read_bytes()
    file.resolve().write_bytes(pristine[:-1] + b" ")
    with pytest.raises(NotHere, match=r"model_index\.json.*not the file of this commit") as caught:
        materialize_by_name(VDN, replace(world.options(), offline=True))
    assert caught.value.code == "damaged-in-hub-cache"
    materialize_by_name(VDN, world.options())
    assert file.read_bytes() == pristine


@pytest.mark.parametrize(
    ("server", "name", "fields", "refused"),
    [
        (SGLANG, VDN, {"required_source_files": ["h3-base/transformer", "LICENSE", UNASKED]}, "required-not-asked"),
        (SGLANG, VDN, {"source_revision": OTHER}, "source-revision-differs"),
        (OVERRIDE, VDN, {"source_revision": OTHER}, None),  # it was told one itself
        (NO_PIN, VDN, {"source_revision": OTHER}, None),  # and this passes none on
        (SGLANG, OVERLAY_REPO, {"source_model_id": "org/other"}, "other-source-model"),
    ],
    ids=str,
)
def test_what_the_manifest_says_counts_where_the_server_goes_by_it(
    own: Served, *, server: Any, name: str, fields: dict[str, Any], refused: str | None
) -> None:
    """A required file that no pattern brings, another commit, another model: none finds the directory, or all anew."""
    edit_manifest(own.hub, **fields)
    if refused is None:
        plan_by_name(name, own.options(server=server))
        return
    said = UNASKED if refused == "required-not-asked" else str(*fields.values())
    with pytest.raises(OverlayError, match=said) as caught:
        plan_by_name(name, own.options(server=server))
    assert caught.value.code == refused
    assert caught.value.data.get("missing", [UNASKED]) == [UNASKED]
    assert own.server.payload() == 0


def test_a_tag_in_the_manifest_is_made_to_lead_to_the_commit(own: Served) -> None:
    """A server without a connection resolves it as any branch."""
    edit_manifest(own.hub, source_revision="v1.0")
    _, staged = plan_by_name(VDN, own.options())
    assert staged.branches == (str(own.storage(VDN) / "refs/v1.0"),)


def test_a_local_source_needs_nothing_but_the_overlay(world: Served) -> None:
    """The server uses the folder in place."""
    folder = world.folder / "vdn-minimax-h3"
    folder.symlink_to(world.hub.source_folder)
    _, staged = plan_by_name(str(folder), world.options())
    assert staged.files == len(paths_below(overlay_of_server(world.hub.overlay)))
    assert staged.branches == ()


def test_an_overlay_is_served_by_its_own_name(world: Served) -> None:
    """Main of both repos leads to the pins, and the directory is the one of such a server, not that of the model."""
    options = world.options()
    with_name, by_model = resolve(OVERLAY_REPO, options), resolve(VDN, options)
    done, staged = materialize_by_name(OVERLAY_REPO, options)
    assert done.location == with_name.state.location != by_model.state.location
    assert done.model == VDN
    assert set(staged.branches) == {str(world.main(VDN)), str(world.main(OVERLAY_REPO))}
    marker = json.loads((done.path / ".sglang_overlay_materialized.json").read_bytes())  # type: ignore[operator]
    assert (marker["overlay_repo_id"], marker["overlay_revision"]) == (OVERLAY_REPO, "main")
    world.server.forget()
    manifest = Path(hf_hub_download(OVERLAY_REPO, MANIFEST, local_files_only=True))
    assert manifest.parent.parent == overlay_of_server(None) == overlay_of_server(world.hub.overlay)
    source_of_server(world)
    assert world.server.requests == []
    assert resolve(OVERLAY_REPO, options).state.name == "present"


def test_the_main_of_an_overlay_is_never_moved_either(world: Served) -> None:
    """The model's own name is the way out: its server asks for the commit."""
    world.set_main(OVERLAY_REPO, OTHER)
    with pytest.raises(CheckFailed, match=f"sglang takes {OVERLAY_REPO} from there") as caught:
        materialize_by_name(OVERLAY_REPO, world.options())
    assert f"--model-path {VDN}; or" in str(caught.value.hint)
    materialize_by_name(VDN, world.options())
    assert world.main(OVERLAY_REPO).read_text() == OTHER


def test_an_exported_registry_means_nothing_to_a_server_that_is_given_an_overlay(world: Served) -> None:
    """So both together are a mistake."""
    with pytest.raises(InvalidUsage) as caught:
        resolve(OVERLAY_REPO, world.options(server=OVERRIDE))
    assert caught.value.code == "option-conflict"


def test_without_a_server_an_overlay_is_no_model(world: Served) -> None:
    """The hint names both ways."""
    with pytest.raises(InvalidUsage) as caught:
        resolve(OVERLAY_REPO, world.options(server=None))
    assert caught.value.code == "overlay-not-model"
    assert VDN in str(caught.value.hint)
    assert "--for sglang" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("patterns", "path", "wanted"),
    [
        (None, "a/b.safetensors", True),
        (None, "a/b.onnx", False),
        ((), "a/b.safetensors", True),
        (("*.json",), "a/b/c.json", True),
        (("a/*",), "a/b/c.bin", True),
        (("a/",), "a/b/c.bin", True),
        (("a/**",), "a/b.msgpack", False),
        (("a/*",), "b/a/c", False),
        (("*.JSON",), "a.json", False),
        (("[ab].txt",), "b.txt", True),
    ],
)
def test_patterns_mean_what_they_mean_to_the_client(*, patterns: Any, path: str, wanted: bool) -> None:
    """Held against its own filter."""
    from huggingface_hub.utils import filter_repo_objects

    asked = asked_of(ServerSpec("o/r", "main", None), Manifest(source_allow_patterns=patterns))
    oracle = list(
        filter_repo_objects([path], allow_patterns=list(patterns) if patterns else None, ignore_patterns=NEVER)
    )
    assert asked.wants(path) is wanted is bool(oracle)
