"""A published directory is swapped, never edited: whoever has the old one open goes on reading the old one."""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.faults import check_sound
from support.models import VDN, options

from overlay.materialization.materialize import materialize
from overlay.materialization.repair import repair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Built


class Reader:
    """A server that has a directory open: the folder itself, and every file of it, some of them mapped."""

    def __init__(self, location: Path, stack: ExitStack) -> None:
        self.folder = os.open(location, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, self.folder)
        self._files: dict[str, tuple[int, mmap.mmap | None]] = {}
        for path in sorted(location.rglob("*")):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                mapped = None
                if path.suffix == ".safetensors":
                    mapped = stack.enter_context(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
                self._files[str(path.relative_to(location))] = descriptor, mapped

    def read(self) -> dict[str, bytes]:
        """Every file, through what was opened at first."""
        return {
            path: mapped[:] if mapped is not None else os.pread(descriptor, 1 << 26, 0)
            for path, (descriptor, mapped) in self._files.items()
        }

    def read_again(self) -> dict[str, bytes]:
        """Every file, opened anew below the folder that was opened at first."""
        found = {}
        for path in self._files:
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self.folder)
            found[path] = os.pread(descriptor, 1 << 26, 0)
            os.close(descriptor)
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a reader opened."""
    with ExitStack() as found:
        yield found


def test_a_reader_keeps_the_generation_that_it_opened(built: Built, stack: ExitStack) -> None:
    """The location is swung to another tree; below the old folder every file can still be opened and is the old."""
    reader = Reader(built.location, stack)
    before = reader.read()

    done = materialize(VDN, built.options(rule="openvdn"))

    assert done.path is not None
    assert built.location.resolve() == done.path != built.root / ".overlay/trees" / built.result.path.name
    assert reader.read() == reader.read_again() == before
    shard = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
    assert (built.location / shard).read_bytes() != before[shard]
    check_sound(built.root)


@pytest.mark.parametrize("by", ["prewarm", "repair"])
@pytest.mark.parametrize("damage", ["config.json", "shard"])
def test_a_damaged_tree_is_replaced_and_not_mended(built: Built, stack: ExitStack, by: str, damage: str) -> None:
    """A new folder of new inodes takes its place; what the reader has open is not touched, down to the damage."""
    place = "transformer/config.json"
    if damage == "shard":
        place = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
    content = (built.tree / place).read_bytes()
    (built.tree / place).unlink()
    (built.tree / place).write_bytes(content[:-1])
    reader = Reader(built.location, stack)
    before = reader.read()
    assert before[place] == content[:-1]

    if by == "prewarm":
        assert materialize(VDN, built.options()).result == "reused"
    else:
        assert [done.result for done in repair(options=built.options())] == ["rebuilt"]

    assert reader.read() == before
    assert os.fstat(reader.folder).st_nlink == 0  # taken out whole, and another folder put there
    assert os.stat(built.tree).st_ino != os.fstat(reader.folder).st_ino  # noqa: PTH116 - beside fstat
    assert (built.location / place).read_bytes() == content
    check_sound(built.root)


def test_a_mended_object_is_a_new_file(built: Built, stack: ExitStack) -> None:
    """Bits that rot under an object and its tree: the repaired ones have other inodes, the rotten stays as it is."""
    place = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
    with (built.tree / place).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    reader = Reader(built.location, stack)
    before = reader.read()

    assert [done.result for done in repair(options=built.options())] == ["rebuilt"]

    assert reader.read() == before
    assert (built.location / place).read_bytes() == before[place][:-1] + bytes([last])
    check_sound(built.root)
    assert materialize(VDN, options(built.hub, built.root)).result == "present"
