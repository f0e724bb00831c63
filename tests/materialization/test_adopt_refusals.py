"""What is not adopted: one bit that differs, a file too many or too few, a marker of something else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.mapped_hub import HIDDEN, MAPPED, mapped_hub, served_mapped_tree
from support.models import VDN
from support.server_trees import (
    CARRIED,
    FUSED,
    MARKER,
    RELAID,
    SECOND_NAME,
    ServerFolder,
    edit_marker,
    flip,
)

from overlay.consumers.server import Server
from overlay.errors import BrokenInput, CannotWrite, CheckFailed, NotHere
from overlay.formats.files import Folder
from overlay.formats.tree_files import is_hidden
from overlay.materialization.adoption.adopt import adopt, plan_adoption
from overlay.materialization.compare import compare
from overlay.materialization.materialize import materialize
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from overlay.materialization.request import Options

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
def test_one_flipped_bit_is_refused_and_nothing_changed(
    served: ServerFolder, path: str, at: int, named: str | None
) -> None:
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


def test_a_flipped_bit_of_a_copied_second_name_is_refused(served: ServerFolder) -> None:
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


def test_every_tensor_of_a_file_that_differs_is_named(served: ServerFolder) -> None:
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
def test_another_layout_is_refused(served: ServerFolder, edit: str) -> None:
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


def test_a_missing_shard_is_named(served: ServerFolder) -> None:
    """Before anything is compared."""
    (served.folder / FUSED).unlink()
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert (caught.value.code, caught.value.data["missing"]) == ("tree-differs", [FUSED])
    served.require_untouched(before)


@pytest.mark.parametrize("kind", ["file", "pipe", "link to a folder", "dangling link"])
def test_what_does_not_belong_there_is_named(served: ServerFolder, kind: str, tmp_path: Path) -> None:
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
def test_a_marker_of_other_pins_is_refused_and_the_field_named(served: ServerFolder, field: str) -> None:
    """What it was built from is not what the registry pins."""
    edit_marker(served.folder, lambda marker: marker.update({field: "org/other"}))
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert (caught.value.code, caught.value.data["fields"]) == ("marker-differs", [field])
    assert "'org/other'" in caught.value.message
    served.require_untouched(before)


@pytest.mark.parametrize("name", ["org/unknown", "/etc", "../x", ""])
def test_a_marker_of_an_unknown_model_is_refused(served: ServerFolder, name: str) -> None:
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
def test_a_hostile_marker_is_refused(served: ServerFolder, text: bytes) -> None:
    """No JSON, no object, fields that are missing or no text, too large, a key twice."""
    (served.folder / MARKER).write_bytes(text)
    for target in (VDN, str(served.folder)):
        with pytest.raises(BrokenInput) as caught:
            adopt(target, served.options())
        assert caught.value.exit_status == 1


def test_an_unknown_field_of_the_marker_is_named(served: ServerFolder) -> None:
    """A server that says more may mean something else by the rest."""
    edit_marker(served.folder, lambda marker: marker.update(quantization="int8"))
    with pytest.raises(BrokenInput, match="quantization"):
        adopt(VDN, served.options())


def test_the_server_decides_what_the_marker_must_say(served: ServerFolder) -> None:
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


# Where one ends up


def deep(folder: Path, levels: int) -> None:
    """Empty folders in one another, more than Python calls itself."""
    here = os.getcwd()  # noqa: PTH109 - a path of that length no call takes
    os.chdir(folder)
    for _ in range(levels):
        os.mkdir("d")  # noqa: PTH102 - as above
        os.chdir("d")
    os.chdir(here)


@pytest.mark.parametrize("levels", [150, 1500])
def test_folders_that_are_nested_without_end_are_refused(served: ServerFolder, levels: int) -> None:
    """By a finding and not by Python's own limit, by whatever looks through them."""
    deep(served.folder, levels)
    try:
        with pytest.raises(BrokenInput) as caught:
            adopt(VDN, served.options())
        assert caught.value.code == "too-deep"
        assert compare(served.folder, served.folder).files == ()
        with pytest.raises(BrokenInput) as caught:
            Folder(served.folder).paths()
        assert caught.value.code == "too-deep"
    finally:
        subprocess.run(["/bin/rm", "-rf", served.folder / "d"], check=True)


@pytest.mark.parametrize("target", [VDN, "location", "folder"])
def test_a_location_that_is_a_foreign_link_is_told_how_to_leave(
    served: ServerFolder, tmp_path: Path, target: str
) -> None:
    """The hint is done, word by word, and the folder is adopted from where it lies."""
    served.folder.rename(tmp_path / "built here")
    served.folder.symlink_to(tmp_path / "built here")
    named = {"location": str(served.folder), "folder": str(tmp_path / "built here")}.get(target, target)
    with pytest.raises(CannotWrite) as caught:
        adopt(named, served.options())
    assert caught.value.code == "location-taken"
    link, folder = str(caught.value.hint).removeprefix("rm ").split(" && overlay adopt ")
    assert resolve(VDN, served.options()).state.name == "stale"
    Path(link).unlink()
    assert adopt(*shlex.split(folder), served.options()).result == "adopted"
    assert (tmp_path / "built here" / FUSED).samefile(served.folder / FUSED)


def test_a_servers_folder_that_is_to_be_verified_leads_to_its_adoption(served: ServerFolder) -> None:
    """It has no record, and what it lacks is known."""
    with pytest.raises(NotHere) as caught:
        verify(served.folder)
    assert caught.value.hint == f"a server built it: overlay adopt {served.folder}"


# Hidden files


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Options, Path]:
    """A server's folder with hidden files that the overlay maps, and options of an adoption."""
    chosen = mapped_hub(tmp_path)
    done = materialize(MAPPED, chosen)
    assert done.path is not None
    assert done.location is not None
    new = mapped_hub(tmp_path / "new")
    return new, served_mapped_tree(new, done.path, tmp_path / "new/root/materialized_models" / done.location.name)


def test_hidden_files_that_the_overlay_maps_are_known(mapped: tuple[Options, Path]) -> None:
    """A server takes them along; they are told by name, and no tree of ours has them."""
    chosen, folder = mapped
    planned, done = plan_adoption(MAPPED, chosen), adopt(MAPPED, chosen)
    assert planned is not None
    for notes in (planned.work.notes, done.notes):
        assert any(all(path in note for path in HIDDEN) and "left out" in note for note in notes)
    assert done.result == "adopted"
    assert folder.is_symlink()
    assert not any(is_hidden(str(path.relative_to(done.path))) for path in done.path.rglob("*") if path.name != MARKER)
    assert verify(folder, "sha256").ok


@pytest.mark.parametrize("size", ["same", "other"])
@pytest.mark.parametrize("path", HIDDEN)
def test_a_hidden_file_that_is_not_the_sources_is_refused(mapped: tuple[Options, Path], path: str, size: str) -> None:
    """It would go with the folder."""
    chosen, folder = mapped
    (folder / path).write_text("p" * len(path) if size == "same" else "precious")
    with pytest.raises(CheckFailed) as caught:
        adopt(MAPPED, chosen)
    assert caught.value.code == "file-differs"
    assert str(folder / path) in caught.value.message
    assert not folder.is_symlink()


@pytest.mark.parametrize("path", ["vae/.env", ".gitattributes", "unet/.git/config"])
def test_a_hidden_file_that_nobody_maps_is_too_many(mapped: tuple[Options, Path], path: str) -> None:
    """By its name."""
    chosen, folder = mapped
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text("precious")
    with pytest.raises(CheckFailed) as caught:
        adopt(MAPPED, chosen)
    assert (caught.value.code, caught.value.data["extra"]) == ("tree-differs", [path])
