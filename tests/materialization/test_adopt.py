"""Adopting what a server built: equal to a build of our own with no weight byte written; refused in anything else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.children import as_plain_user, end_child, in_child, mount_tmpfs, open_to_all, own_mounts, start_child
from support.faults import fail_from
from support.hubs import client_of
from support.locks import lock_of, write_lock
from support.models import VDN, options, readable_by_all, vdn_registry
from support.published_rule import files_of
from support.server_trees import MARKER, edit_marker, flip, place_server_tree, server_tree

import overlay.cache.links
import overlay.cache.replacing
import overlay.cache.store
import overlay.materialization.adopt
import overlay.materialization.sinks
from overlay.consumers.server import Server
from overlay.errors import BrokenInput, CannotWrite, CheckFailed, InvalidUsage, NotHere, TryAgain
from overlay.fusion.output import PartialFile
from overlay.materialization.adopt import adopt, plan_adoption
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.resolve import resolve
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Built

FUSED = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
RELAID = "video_vae/source/model.safetensors"
SECOND_NAME = "video_vae/model.safetensors"
CARRIED = "transformer/sglang_vdn_linear_branch.safetensors"


class Served:
    """A server's folder at its location, below a root where this program never was.

    Attributes:
        folder: The real folder.
        built: A build of the same by this program, in another root.
    """

    def __init__(self, built: Built, tree: Path, root: Path) -> None:
        self.built = built
        self.root = root
        self.folder = place_server_tree(tree, root, built.location.name)

    def options(self, **choices: Any) -> Options:
        """Options of a run on the root."""
        return options(self.built.hub, self.root, **choices)

    @property
    def objects(self) -> list[Path]:
        """Every object."""
        return list(self.root.glob(".overlay/objects/*/*/*"))

    def seen(self) -> dict[str, tuple[int, int, bytes]]:
        """Inode, mode and content of every file of the folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.folder)): (path.stat().st_ino, path.stat().st_mode, path.read_bytes())
            for path in paths
        }

    def require_untouched(self, before: dict[str, tuple[int, int, bytes]]) -> None:
        """The folder is what it was, and the cache holds nothing of it."""
        assert not self.folder.is_symlink()
        assert self.seen() == before
        assert self.objects == []
        for place in ("trees", "actions", "staging"):
            assert list(self.root.glob(f".overlay/{place}/*")) == []


@pytest.fixture(scope="session")
def plain_tree(shared_build: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server builds of the tiny checkpoint: copy it, never write into it."""
    return server_tree(shared_build.hub, tmp_path_factory.mktemp("server") / "tree")


@pytest.fixture
def served(shared_build: Built, plain_tree: Path, tmp_path: Path) -> Served:
    """A server's folder of the test's own."""
    return Served(shared_build, plain_tree, tmp_path / "root")


def identity(tree: Path) -> dict[str, Any]:
    """A record without what one run did."""
    record: dict[str, Any] = json.loads((tree / RECORD_NAME).read_bytes())
    del record["run"]
    return record


def payload(folder: Path) -> int:
    """Bytes of the tensors of every weight file, each inode once."""
    inodes = {path.stat().st_ino: path for path in folder.rglob("*.safetensors")}
    return sum(path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little") for path in inodes.values())


# What it makes


def test_an_adopted_tree_is_the_tree_of_a_build(served: Served) -> None:
    """Name, record and bytes; the weights are the server's inodes, none was written, and the next run does nothing."""
    before = served.seen()
    weights = {path: inode for path, (inode, _, _) in before.items() if path.endswith(".safetensors")}
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    done = adopt(VDN, served.options())
    assert (done.model, done.result, done.location) == (VDN, "adopted", served.folder)
    assert served.folder.is_symlink()
    assert served.folder.resolve() == done.path
    assert done.path.name == served.built.tree.name
    assert identity(done.path) == identity(served.built.tree)
    made, expected = files_of(done.path), files_of(served.built.tree)
    del made[RECORD_NAME], expected[RECORD_NAME]
    assert made == expected
    assert {path: (done.path / path).stat().st_ino for path in weights} == weights
    assert done.counters == planned.work.counters
    assert (done.counters.written, done.counters.downloaded) == (0, 0)
    assert done.counters.linked == payload(done.path)
    assert list(served.root.glob(".overlay/staging/*")) == []
    assert [path.name for path in (served.root / "materialized_models").iterdir()] == [served.folder.name]
    assert verify(served.folder, "sha256").ok
    assert materialize(VDN, served.options()).result == "present"
    assert adopt(VDN, served.options()).result == "present"
    assert plan_adoption(VDN, served.options()) is None


def test_nothing_is_written_through_the_builders_file(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are computed again block by block, and no file is opened for it."""

    def never(*_: Any) -> None:
        raise AssertionError("a weight file was written")

    monkeypatch.setattr(PartialFile, "__init__", never)
    assert adopt(VDN, served.options()).counters.written == 0


def test_what_a_server_may_rewrite_shares_no_inode(served: Served) -> None:
    """Configs and tokenizers are copied: to the objects, and from there to the tree."""
    small = {path: inode for path, (inode, _, _) in served.seen().items() if not path.endswith(".safetensors")}
    done = adopt(VDN, served.options())
    objects = {path.stat().st_ino for path in served.objects}
    for path, inode in small.items():
        assert (done.path / path).stat().st_ino not in objects | {inode}
    assert {how for path, how in done.links.items() if not path.endswith(".safetensors")} <= {"copy", "present"}


def test_the_record_says_that_it_was_adopted(served: Served) -> None:
    """What was linked, and how many bytes were not written; nothing of the server's host."""
    done = adopt(VDN, served.options())
    run = json.loads((done.path / RECORD_NAME).read_bytes())["run"]
    assert FUSED in run["adopted"]
    assert run["links"][FUSED] == "hardlink"
    assert run["counters"] == {"downloaded": 0, "read": done.counters.read, "written": 0, "linked": payload(done.path)}
    assert sum(run["kernels"].values()) > 0
    assert "/srv/hf" not in json.dumps(run)
    assert json.loads((done.path / MARKER).read_bytes())["source_dir"].startswith(VDN)


def test_a_bump_after_an_adoption_finds_its_objects(served: Served) -> None:
    """They are known by their inputs, as after a build."""
    adopt(VDN, served.options())
    (served.folder).unlink()
    shutil.rmtree(next(served.root.glob(".overlay/trees/*")))
    done = materialize(VDN, served.options())
    assert (done.result, done.counters) == ("reused", Counters())


def test_modes_of_the_servers_files_stay(served: Served) -> None:
    """Nothing that is linked is chmodded, also where the group may write the root."""
    served.root.chmod(0o2775)
    path = served.folder / FUSED
    path.chmod(0o400)
    done = adopt(VDN, served.options())
    assert stat.S_IMODE((done.path / FUSED).stat().st_mode) == 0o400


def test_a_server_that_has_a_file_open_reads_on(served: Served) -> None:
    """Its inode lives on in the tree, and the folder's other files until they are closed."""
    with (served.folder / FUSED).open("rb") as weights, (served.folder / "model_index.json").open("rb") as index:
        done = adopt(VDN, served.options())
        assert weights.read() == (done.path / FUSED).read_bytes()
        assert index.read() == (done.path / "model_index.json").read_bytes()


def test_at_every_moment_a_model_is_there(served: Served) -> None:
    """Whoever looks again and again always finds the folder or our link."""
    told, tell = os.pipe()

    def watch() -> tuple[int, int]:
        os.close(tell)
        os.set_blocking(told, False)
        looks = misses = 0
        while True:
            with suppress(BlockingIOError):
                os.read(told, 1)
                return looks, misses
            looks += 1
            misses += not (served.folder / "model_index.json").is_file()

    pid, outcome = start_child(watch)
    os.close(told)
    adopt(VDN, served.options())
    os.close(tell)
    looks, misses = end_child(pid, outcome)
    assert looks > 100
    assert misses == 0


# Where it is


def test_a_folder_elsewhere_stays_and_its_model_is_published(served: Served, tmp_path: Path) -> None:
    """On the root's filesystem; the location leads to our tree, which shares the folder's weights."""
    folder = served.folder.rename(tmp_path / "copied from another host")
    served.folder = folder
    before = served.seen()
    done = adopt(str(folder), served.options())
    assert served.seen() == before
    assert done.location.is_symlink()
    assert (done.path / FUSED).samefile(folder / FUSED)
    assert any(str(folder) in note for note in done.notes)


def test_the_location_itself_may_be_named(served: Served) -> None:
    """As the hint of a refused run does."""
    with pytest.raises(CannotWrite) as caught:
        materialize(VDN, served.options())
    assert caught.value.hint == f"overlay adopt {served.folder}"
    assert adopt(str(served.folder), served.options()).location.is_symlink()


def test_a_folder_beside_the_servers_own_does_not_take_its_place(served: Served, tmp_path: Path) -> None:
    """What is at the location is not what was verified."""
    other = shutil.copytree(served.folder, tmp_path / "other")
    before = served.seen()
    with pytest.raises(CannotWrite) as caught:
        adopt(str(other), served.options())
    assert caught.value.code == "location-taken"
    served.require_untouched(before)


def test_another_filesystem_is_refused(served: Served, tmp_path: Path) -> None:
    """Nothing could be linked from there: it says so before anything is compared."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def work() -> Any:
        if not own_mounts():
            return None
        mount_tmpfs(disk, "64m")
        shutil.copytree(served.folder, disk / "tree")
        shutil.rmtree(served.folder)
        try:
            adopt(str(disk / "tree"), served.options())
        except CannotWrite as error:
            return error.code, error.message, error.hint
        return "adopted"

    if os.geteuid() == 0:
        outcome = in_child(work)
        if outcome is not None:
            code, message, hint = outcome
            assert code == "link-impossible"
            assert "EXDEV" in message
            assert "--cache-root" in hint


def test_files_of_another_owner_that_the_kernel_protects_are_refused(served: Served) -> None:
    """The kernel lets nobody link what he may not write; it is named, and nothing is copied in its place."""
    protected = Path("/proc/sys/fs/protected_hardlinks")
    if os.geteuid() != 0 or protected.read_text().strip() != "1":
        pytest.skip("needs root, to be somebody else, and fs.protected_hardlinks")
    readable_by_all(served.built.hub.root)
    readable_by_all(served.root.parent)
    for folder in (served.root, served.root / "materialized_models"):
        open_to_all(folder)
    chosen = served.options()
    with pytest.raises(CannotWrite) as caught:
        as_plain_user(lambda: adopt(VDN, chosen))
    assert caught.value.code == "link-impossible"
    assert "uid 0" in caught.value.message
    assert not served.folder.is_symlink()


def test_nothing_at_the_location_is_nothing_to_adopt(shared_build: Built, tmp_path: Path) -> None:
    """It says what builds the model."""
    with pytest.raises(NotHere) as caught:
        adopt(VDN, options(shared_build.hub, tmp_path / "root"))
    assert caught.value.code == "nothing-to-adopt"
    assert "overlay prewarm" in str(caught.value.hint)


def test_a_folder_without_a_marker_is_no_servers(served: Served) -> None:
    """A server writes it last, so an unfinished tree has none."""
    (served.folder / MARKER).unlink()
    before = served.seen()
    for target in (VDN, str(served.folder)):
        with pytest.raises(NotHere) as caught:
            adopt(target, served.options())
        assert caught.value.code == "no-marker"
    assert served.seen() == before


def test_what_no_server_builds_is_refused(served: Served, tmp_path: Path) -> None:
    """A model without an overlay."""
    registry = tmp_path / "plain.yaml"
    registry.write_text(
        "schema_version: 1\nmodels:\n  org/plain:\n"
        f"    source: {{revision: {'a' * 40}}}\n"
        "    recipe: {name: lora, base: {path: base}, adapters: [{path: a}]}\n"
    )
    with pytest.raises(InvalidUsage) as caught:
        adopt("org/plain", served.options(registry=registry))
    assert caught.value.code == "nothing-to-adopt"


# One byte


@pytest.mark.parametrize(
    ("path", "at", "named"),
    [
        (FUSED, -1, "transformer_blocks"),
        (RELAID, -1, "quant_conv"),
        ("transformer/sglang_rope_inv_freq.safetensors", -1, "rope.inv_freq"),
        (CARRIED, -1, "transformer_blocks"),
        ("text_encoder/model-00002-of-00002.safetensors", -1, "language_model"),
        ("audio_vae/diffusion_pytorch_model.safetensors", -5, ""),
        ("tokenizer/tokenizer.json", 5, None),
        ("text_encoder/config.json", 5, None),
        ("transformer/config.json", 5, None),
        ("model_index.json", 5, None),
        ("README.md", 5, None),
    ],
)
def test_one_flipped_bit_is_refused_and_nothing_changed(served: Served, path: str, at: int, named: str | None) -> None:
    """The file is named, of weights the tensor too."""
    flip(served.folder / path, at)
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "file-differs"
    assert str(served.folder / path) in caught.value.message
    if named is not None:
        [tensor] = caught.value.data["tensors"]
        assert named in tensor
        assert tensor in caught.value.message
    served.require_untouched(before)


def test_a_flipped_bit_of_a_copied_second_name_is_refused(served: Served) -> None:
    """Where the server could not link it, it is a file of its own."""
    path = served.folder / SECOND_NAME
    path.unlink()
    shutil.copy2(served.folder / RELAID, path)
    flip(path, -1)
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert caught.value.data["where"] == str(path)
    assert len(caught.value.data["tensors"]) == 1
    flip(path, -1)
    assert adopt(VDN, served.options()).result == "adopted"


def test_every_tensor_of_a_file_that_differs_is_named(served: Served) -> None:
    """Not the first one alone: whoever looks for the cause wants to see which."""
    tensors = load_file(served.folder / FUSED)
    changed = sorted(tensors)[:2]
    for name in changed:
        tensors[name] = tensors[name] * 2 + 1
    with safe_open(served.folder / FUSED, "pt") as file:
        metadata = file.metadata()
    save_file(tensors, served.folder / FUSED, metadata)
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert sorted(caught.value.data["tensors"]) == changed


@pytest.mark.parametrize("edit", ["metadata", "cut", "longer", "empty"])
def test_another_layout_is_refused(served: Served, edit: str) -> None:
    """Equal tensors under another header, a file that was cut, one with more behind it."""
    path = served.folder / FUSED
    data = path.read_bytes()
    if edit == "metadata":
        save_file(load_file(path), path, {"format": "np"})
    else:
        path.write_bytes({"cut": data[:-1], "longer": data + b"x", "empty": b""}[edit])
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert str(path) in caught.value.message
    served.require_untouched(before)


# Names


def test_a_missing_shard_is_named(served: Served) -> None:
    """Before anything is compared."""
    (served.folder / FUSED).unlink()
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert (caught.value.code, caught.value.data["missing"]) == ("tree-differs", [FUSED])
    served.require_untouched(before)


@pytest.mark.parametrize("kind", ["file", "pipe", "link to a folder", "dangling link"])
def test_what_does_not_belong_there_is_named(served: Served, kind: str, tmp_path: Path) -> None:
    """A server makes none of these; what it did not make is not taken, and not thrown away."""
    extra = served.folder / "transformer" / "extra.safetensors"
    match kind:
        case "file":
            extra.write_bytes(b"?")
        case "pipe":
            os.mkfifo(extra)
        case "link to a folder":
            extra.symlink_to(tmp_path)
        case "dangling link":
            extra.symlink_to("nowhere")
    with pytest.raises(CheckFailed, match=r"extra\.safetensors") as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "tree-differs"
    assert os.path.lexists(extra)
    assert served.objects == []


# The marker


@pytest.mark.parametrize(
    "field",
    [
        "source_model_id",
        "overlay_repo_id",
        "overlay_revision",
        "materializer_version",
        "overlay_fingerprint",
        "source_revision",
    ],
)
def test_a_marker_of_other_pins_is_refused_and_the_field_named(served: Served, field: str) -> None:
    """What it was built from is not what the registry pins."""
    edit_marker(served.folder, lambda marker: marker.update({field: "org/other"}))
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert (caught.value.code, caught.value.data["fields"]) == ("marker-differs", [field])
    assert "'org/other'" in caught.value.message
    served.require_untouched(before)


@pytest.mark.parametrize("name", ["org/unknown", "/etc", "../x", ""])
def test_a_marker_of_an_unknown_model_is_refused(served: Served, name: str) -> None:
    """A name out of a marker is never taken for a path."""
    edit_marker(served.folder, lambda marker: marker.update(source_model_id=name))
    with pytest.raises(BrokenInput) as caught:
        adopt(str(served.folder), served.options())
    assert caught.value.code == "marker-differs"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"source_model_id": 1}',
        b'{"a": "' + b"x" * 100_000 + b'"}',
        b'{"source_model_id": "a/b", "source_model_id": "a/b"}',
    ],
)
def test_a_hostile_marker_is_refused(served: Served, text: bytes) -> None:
    """No JSON, no object, fields that are missing or no text, too large, a key twice."""
    (served.folder / MARKER).write_bytes(text)
    for target in (VDN, str(served.folder)):
        with pytest.raises(BrokenInput) as caught:
            adopt(target, served.options())
        assert caught.value.exit_status == 1


def test_an_unknown_field_of_the_marker_is_named(served: Served) -> None:
    """A server that says more may mean something else by the rest."""
    edit_marker(served.folder, lambda marker: marker.update(quantization="int8"))
    with pytest.raises(BrokenInput, match="quantization"):
        adopt(VDN, served.options())


def test_the_server_decides_what_the_marker_must_say(served: Served) -> None:
    """An older release writes no ``source_revision``; one with the exported registry hashes the source's commit."""
    edit_marker(served.folder, lambda marker: marker.pop("source_revision"))
    override = Server("sglang", (0, 5, 23), with_override=True)
    with pytest.raises(NotHere) as caught:  # it looks elsewhere
        adopt(VDN, served.options(server=override))
    assert caught.value.code == "nothing-to-adopt"
    with pytest.raises(CheckFailed) as differs:
        adopt(str(served.folder), served.options(server=override))
    assert differs.value.data["fields"] == ["source_revision"]
    assert "--for" in str(differs.value.hint)
    assert adopt(VDN, served.options(server=Server("sglang", (0, 5, 21)))).location == served.folder


# Links of the server


def test_links_into_a_users_folder_are_taken_as_a_build_takes_them(served: Served) -> None:
    """The server's fallback where it could not hardlink: what they lead to is copied, since people edit it."""
    source = served.built.hub.source_folder / "stage-dmd-step-250/linear_branch/model.safetensors"
    (served.folder / CARRIED).unlink()
    (served.folder / CARRIED).symlink_to(source)
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    done = adopt(VDN, served.options())
    assert done.counters == planned.work.counters
    assert done.links[CARRIED] in ("copy", "reflink")
    assert not (done.path / CARRIED).is_symlink()
    assert not (done.path / CARRIED).samefile(source)
    assert source.is_file()
    assert identity(done.path) == identity(served.built.tree)


@pytest.mark.parametrize("link", ["symlink", "hardlink"])
def test_links_into_the_hubs_cache(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    """Their blobs are linked as a build links them, and are not read again where their digest is known."""
    monkeypatch.setattr(overlay.cache.links, "SMALL_FILE", 500_000)
    hub = served.built.hub
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        chosen = Options(registry=vdn_registry(tmp_path, hub), cache_root=served.root)
        materialize(VDN, replace(chosen, cache_root=tmp_path / "elsewhere"))
        name = "stage-dmd-step-250/linear_branch/model.safetensors"
        [snapshot] = (tmp_path / "hf/hub").glob(f"models--OpenVDN--vdn-minimax-h3/snapshots/*/{name}")
        blob, path = snapshot.resolve(), served.folder / CARRIED
        mode = blob.stat().st_mode
        path.unlink()
        path.symlink_to(blob) if link == "symlink" else path.hardlink_to(blob)
        done = adopt(VDN, chosen)
    assert done.counters.written == 0
    assert done.links[CARRIED] in ("hardlink", "reflink")
    assert (done.path / CARRIED).samefile(blob) == (done.links[CARRIED] == "hardlink")
    assert blob.stat().st_mode == mode
    assert identity(done.path) == identity(served.built.tree)


# What is known already


def test_objects_that_are_there_are_kept(built: Built, plain_tree: Path) -> None:
    """The tree is compared by their digests, nothing is computed and nothing linked."""
    objects, location = built.objects(), built.location
    shutil.rmtree(built.tree)
    location.unlink()
    folder = place_server_tree(plain_tree, built.root, location.name)
    planned = plan_adoption(VDN, built.options())
    done = adopt(VDN, built.options())
    assert planned is not None
    assert done.counters == planned.work.counters == Counters(read=payload(done.path))
    assert set(done.links.values()) == {"present"}
    assert built.objects() == objects
    assert any("in the cache already" in note for note in done.notes)
    assert folder.is_symlink()
    run = json.loads((done.path / RECORD_NAME).read_bytes())["run"]
    assert (run["adopted"], run["engine"]) == ([], None)


def test_a_flipped_bit_is_found_where_the_objects_are_known(built: Built, plain_tree: Path) -> None:
    """By the tensors' digests, with the tensor named."""
    location = built.location
    shutil.rmtree(built.tree)
    location.unlink()
    folder = place_server_tree(plain_tree, built.root, location.name)
    flip(folder / FUSED, -1)
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, built.options())
    assert len(caught.value.data["tensors"]) == 1
    assert not folder.is_symlink()


@pytest.fixture
def locked(served: Served) -> dict[str, Any]:
    """A lock entry that expects the output of a build."""
    return lock_of(VDN, served.built.options(), served.built.hub.root, served.built.tree)


def test_what_the_lock_expects_is_not_computed(served: Served, locked: dict[str, Any]) -> None:
    """No arithmetic, no base weights: the sha256 of every file is known."""
    write_lock(VDN, served.options(), locked)
    done = adopt(VDN, served.options())
    assert done.counters.read == done.counters.linked == payload(done.path)
    assert json.loads((done.path / RECORD_NAME).read_bytes())["run"]["engine"] is None
    assert identity(done.path) == identity(served.built.tree)
    assert verify(done.path).ok


def test_a_flipped_bit_is_found_by_the_lock(served: Served, locked: dict[str, Any]) -> None:
    """With the tensor that it is in."""
    write_lock(VDN, served.options(), locked)
    flip(served.folder / FUSED, -1)
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert str(served.folder / FUSED) in caught.value.message
    assert len(caught.value.data["tensors"]) == 1
    served.require_untouched(before)


def test_a_lock_that_expects_something_else_is_not_passed_by(served: Served, locked: dict[str, Any]) -> None:
    """Also where the tree is what the inputs give: which of them is right is for people to find out."""

    def edit(document: dict[str, Any]) -> None:
        document["expected"]["files"]["transformer/config.json"]["sha256"] = "0" * 64
        document["expected"]["files"]["transformer/config.json"]["digest"] = f"sha256:{'0' * 64}"

    write_lock(VDN, served.options(), locked, edit)
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "output-differs"
    served.require_untouched(before)


# Others, and kills


def test_another_run_on_the_model_is_waited_for(served: Served) -> None:
    """No longer than was asked for."""
    cache = overlay.cache.store.Cache.open(served.root, create=True)
    with (
        cache.lock(served.folder.name, timeout=0),
        pytest.raises(TryAgain) as caught,
    ):
        adopt(VDN, served.options(lock_timeout=0.0))
    assert caught.value.code == "lock-busy"


def test_two_adoptions_at_once_end_in_one_tree(served: Served) -> None:
    """Whoever comes second finds it published, or the folder gone."""
    children = [start_child(lambda: adopt(VDN, served.options()).result) for _ in range(2)]
    outcomes = []
    for child in children:
        try:
            outcomes.append(end_child(*child))
        except (TryAgain, NotHere) as error:
            outcomes.append(error.code)
    assert "adopted" in outcomes
    assert verify(served.folder).ok
    assert list(served.root.glob(".overlay/staging/*")) == []


def test_what_is_written_into_meanwhile_is_not_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change after the comparison is seen before anything is linked."""
    compare = overlay.materialization.adopt.compare_computed

    def compare_then_change(*args: Any) -> Any:
        found = compare(*args)
        flip(served.folder / FUSED, -1)
        os.utime(served.folder / FUSED, ns=(1, time.time_ns()))
        return found

    monkeypatch.setattr(overlay.materialization.adopt, "compare_computed", compare_then_change)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    assert not served.folder.is_symlink()
    assert served.objects == []


def test_no_object_is_left_of_what_is_written_into_while_it_is_linked(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of the server's inode would hold other bytes than its name says."""
    link_object, path = overlay.cache.store.Cache.link_object, served.folder / FUSED

    def link_then_change(self: Any, source: Path, *args: Any, **named: Any) -> Any:
        found = link_object(self, source, *args, **named)
        if source == path:
            last = path.read_bytes()[-1]
            with path.open("r+b") as file:  # in place, as no server does
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))
            os.utime(path, ns=(1, time.time_ns()))
        return found

    monkeypatch.setattr(overlay.cache.store.Cache, "link_object", link_then_change)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    assert not served.folder.is_symlink()
    assert path.stat().st_nlink == 1
    monkeypatch.undo()
    with pytest.raises(CheckFailed):
        adopt(VDN, served.options())


def test_a_folder_that_was_built_anew_meanwhile_stays(
    served: Served, plain_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the one that was compared."""
    place_tree = overlay.materialization.sinks.place_tree

    def place_then_replace(*args: Any) -> None:
        place_tree(*args)
        served.folder.rename(served.root / "was")
        place_server_tree(plain_tree, served.root, served.folder.name)

    monkeypatch.setattr(overlay.materialization.sinks, "place_tree", place_then_replace)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "location-changed"
    assert not served.folder.is_symlink()
    monkeypatch.undo()
    assert adopt(VDN, served.options()).result == "adopted"


def no_exchange(*_: Any) -> bool:
    """A kernel or a filesystem without ``RENAME_EXCHANGE``."""
    return False


def test_without_an_exchange_two_renames_do(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said."""
    monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    done = adopt(VDN, served.options())
    assert any("two renames" in note for note in done.notes)
    assert verify(served.folder).ok
    assert list(served.root.glob(".overlay/staging/*")) == []


def test_a_second_rename_that_fails_puts_the_folder_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps what it had."""
    monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    before, rename = served.seen(), type(served.folder).rename

    def refuse_the_link(self: Path, target: Path) -> Any:
        if self.is_symlink():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return rename(self, target)

    monkeypatch.setattr(type(served.folder), "rename", refuse_the_link)
    with pytest.raises(CannotWrite):
        adopt(VDN, served.options())
    assert not served.folder.is_symlink()
    assert served.seen() == before


def test_an_exchange_that_the_system_refuses_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a lack of the operation leads to two renames."""

    class Refusing:
        def renameat2(self, *_: Any) -> int:
            overlay.cache.replacing.ctypes.set_errno(errno.EACCES)
            return -1

    monkeypatch.setattr(overlay.cache.replacing, "_LIBC", Refusing())
    with pytest.raises(CannotWrite) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "not-permitted"
    assert not served.folder.is_symlink()


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after(times: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of a function: killed at its call number ``times``, from 0."""
    calls = iter(range(1 << 30))
    return lambda *args, **named: die() if next(calls) == times else real(*args, **named)


def killed_with(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of ``rmtree``: killed when it is to remove the folder that the server built."""
    return lambda path, **named: die() if Path(path, name).is_dir() else real(path, **named)


@pytest.mark.parametrize(
    "moment", ["compared", "first-object", "third-object", "tree", "publish", "exchange", "exchanged", "removal"]
)
def test_a_kill_at_a_chosen_moment_leaves_a_model(served: Served, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The server's folder or our tree, and the next run ends as if there had been no kill."""
    cache, replacing = overlay.cache.store.Cache, overlay.cache.replacing
    with monkeypatch.context() as patch:
        match moment:
            case "compared":
                patch.setattr(overlay.materialization.adopt, "sha256_of_blobs", die)
            case "first-object" | "third-object":
                patch.setattr(cache, "link_object", after(0 if moment == "first-object" else 2, cache.link_object))
            case "tree":
                patch.setattr(overlay.materialization.sinks, "place_tree", die)
            case "publish":
                patch.setattr(cache, "publish_tree", die)
            case "exchange":
                patch.setattr(replacing, "_exchange", die)
            case "exchanged":
                exchange = replacing._exchange
                patch.setattr(replacing, "_exchange", lambda a, b: exchange(a, b) and die())
            case "removal":
                patch.setattr(shutil, "rmtree", killed_with(served.folder.name, shutil.rmtree))
        before = served.seen()
        outcome = in_child(lambda: adopt(VDN, served.options()))
    assert outcome == signal.SIGKILL
    is_ours = moment in ("exchanged", "removal")
    assert served.folder.is_symlink() == is_ours
    if is_ours:
        assert verify(served.folder).ok
        assert resolve(VDN, served.options()).state.name == "present"
    else:
        assert served.seen() == before
    done = adopt(VDN, served.options())
    assert done.result == ("present" if is_ours else "adopted")
    assert done.path.name == served.built.tree.name
    assert verify(served.folder).ok


@pytest.mark.slow
@pytest.mark.parametrize("swap", ["exchange", "two renames"])
def test_a_disk_that_refuses_from_some_step_on_leaves_a_model(
    served: Served, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    """Whichever step it is: the server's folder as it was, or our tree, whole; and an error that says what to do."""
    if swap != "exchange":
        monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    before = served.seen()

    def fail(step: int) -> str:
        failing = fail_from(step, errno.ENOSPC)
        try:
            return f"{adopt(VDN, served.options()).result} {failing.hits}"
        except CannotWrite as error:
            return error.code

    step, outcomes = 0, []
    while not served.folder.is_symlink():
        outcomes.append(in_child(lambda at=step: fail(at)))
        if not served.folder.is_symlink():
            assert served.seen() == before
        step += 17
    assert verify(served.folder).ok
    assert len(outcomes) > 5
    assert set(outcomes[:-1]) <= {"no-room", "link-impossible"}  # by the link that is tried first


def test_no_room_is_said_before_anything_is_compared(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of small files need some."""
    monkeypatch.setattr(overlay.cache.store, "free_room", lambda _path: 10)
    before = served.seen()
    with pytest.raises(CannotWrite) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "no-room"
    served.require_untouched(before)


def test_a_dry_run_writes_nothing(served: Served) -> None:
    """Not even a folder of this program."""
    before = served.seen()
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    assert planned.ways[FUSED] == "hardlink"
    assert planned.work.counters.written == 0
    assert served.seen() == before
    assert not (served.root / ".overlay").exists()
    flip(served.folder / FUSED, -1)
    assert plan_adoption(VDN, served.options()) is not None
    (served.folder / FUSED).unlink()
    with pytest.raises(CheckFailed):
        plan_adoption(VDN, served.options())


def test_a_plan_of_a_build_names_the_adoption(served: Served) -> None:
    """Also the dry run of the other command says what is in the way."""
    with pytest.raises(CannotWrite) as caught:
        plan(VDN, served.options())
    assert str(caught.value.hint).startswith("overlay adopt ")
