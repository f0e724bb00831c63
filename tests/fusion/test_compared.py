"""A file held against what a build would write: the same bytes pass, any other bit has a name."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import CheckFailed, NotHere
from overlay.formats.header import read_header
from overlay.fusion.build import build_safetensors
from overlay.fusion.compared import ComparedFile
from overlay.fusion.workers import Workers
from overlay.planning.outputs import Input, Literal, OutputTensor, Range, SafetensorsFile, Zeros

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.fusion.build import BuiltFile

pytestmark = pytest.mark.no_torch

SOURCE = Input("org/source", "local", "data", 20 * 2**20, "")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is larger than a block."""
    path = tmp_path_factory.mktemp("source") / "data"
    path.write_bytes(random.Random(1).randbytes(SOURCE.size))
    return path


SPEC = SafetensorsFile(
    "out.safetensors",
    {"format": "pt"},
    (
        OutputTensor("large", "U8", (18 * 2**20,), (Range(SOURCE, 5, 18 * 2**20),)),
        OutputTensor("pieces", "U8", (300,), (Range(SOURCE, 9, 100), Literal(bytes(range(100))), Zeros(100))),
        OutputTensor("empty", "U8", (0,), ()),
        OutputTensor("scalar", "F32", (), (Literal(b"\0\0\x80\x3f"),)),
    ),
)


def build(source: Path, out: Path, *, compare: bool) -> BuiltFile:
    """Write or compare the file of ``SPEC``."""
    with Workers(None, 2, 2**30) as workers:
        chosen = {"into": ComparedFile} if compare else {}
        return build_safetensors(
            SPEC, out, open_input=lambda _source: source, workers=workers, rule="fp32-once", **chosen
        )


@pytest.fixture(scope="module")
def written(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuiltFile]:
    """The file as a build writes it."""
    out = tmp_path_factory.mktemp("written") / "out"
    return out, build(source, out, compare=False)


def test_the_same_bytes_pass_and_have_the_digests_of_a_build(source: Path, written: tuple[Path, BuiltFile]) -> None:
    """Comparing gives what writing gave, and leaves the file alone."""
    out, built = written
    before = out.stat()
    assert build(source, out, compare=True) == built
    after = out.stat()
    assert (after.st_mtime_ns, after.st_ino, after.st_size) == (before.st_mtime_ns, before.st_ino, before.st_size)


@given(data=st.data())
def test_any_flipped_bit_is_found_and_its_tensor_named(
    source: Path, written: tuple[Path, BuiltFile], data: st.DataObject
) -> None:
    """Of the header the file alone is named."""
    out, _ = written
    header = read_header(out)
    name = data.draw(st.sampled_from(["large", "pieces", "scalar", ""]))
    start, nbytes = (header.offset(name), header.tensors[name].nbytes) if name else (0, header.data_start)
    at, bit = start + data.draw(st.integers(0, nbytes - 1)), 1 << data.draw(st.integers(0, 7))
    with out.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ bit]))
    try:
        with pytest.raises(CheckFailed) as caught:
            build(source, out, compare=True)
    finally:
        with out.open("r+b") as file:
            file.seek(at)
            file.write(bytes([byte]))
    assert caught.value.data["tensors"] == ([name] if name else [])
    assert str(out) in caught.value.message


def test_all_tensors_that_differ_are_named(source: Path, written: tuple[Path, BuiltFile], tmp_path: Path) -> None:
    """In the order of the file."""
    out, _ = written
    header = read_header(out)
    content = bytearray(out.read_bytes())
    for name in ("pieces", "scalar"):
        content[header.offset(name)] ^= 1
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(CheckFailed) as caught:
        build(source, other, compare=True)
    assert caught.value.data["tensors"] == [name for name in header.tensors if name in ("pieces", "scalar")]


@pytest.mark.parametrize("size", [0, 7, 100, -1, 1])
def test_another_size_is_refused_at_once(
    source: Path, written: tuple[Path, BuiltFile], tmp_path: Path, size: int
) -> None:
    """Cut short or longer; a negative size counts from the end."""
    content = written[0].read_bytes()
    other = tmp_path / "other"
    other.write_bytes(content + b"x" if size == 1 else content[:size])
    with pytest.raises(CheckFailed, match=rf"{other.stat().st_size} bytes, expected {len(content)}"):
        build(source, other, compare=True)


def test_a_missing_file_is_said_to_be_missing(source: Path, tmp_path: Path) -> None:
    """It is no difference."""
    with pytest.raises(NotHere):
        build(source, tmp_path / "nowhere", compare=True)


def test_a_file_that_shrinks_meanwhile_is_refused(written: tuple[Path, BuiltFile], tmp_path: Path) -> None:
    """No endless reading at its end."""
    other = tmp_path / "other"
    other.write_bytes(written[0].read_bytes())
    with ComparedFile(other, other.stat().st_size) as compared:
        other.write_bytes(b"short")
        with pytest.raises(CheckFailed, match="shrank"):
            compared.write_at(0, b"x" * 100)
