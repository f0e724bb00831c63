"""Random and mutated headers: nothing but BrokenInput is raised, and what passes is safe to read by."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tensors import f32, lfs_pointer, raw_file, tensors_file, u8

from overlay.errors import BrokenInput
from overlay.formats.dtypes import BITS
from overlay.formats.header import Header, needed_prefix, parse_header, read_header

pytestmark = pytest.mark.no_torch

VALID = tensors_file(
    {"blocks.0.w": f32([2, 3], range(6)), "e": u8(), "q": ("F4", [2, 4], b"abcd"), "s": f32([], [1])},
    {"format": "pt"},
)
INSERTED = [b"0", b"-", b"9" * 20, b"{", b"[", b",", b'"', b"\\"]


def _parse(content: bytes, file_size: int) -> Header | None:
    try:
        return parse_header(content[: needed_prefix(content[:8], file_size, "x")], file_size, "x")
    except BrokenInput:
        return None


def _assert_safe(header: Header, file_size: int) -> None:
    """What an obviously right reader would demand of every range."""
    covered = header.data_start
    for name, tensor in header.tensors.items():
        elements = 1
        for extent in tensor.shape:
            assert type(extent) is int
            assert extent >= 0
            elements *= extent
        assert name == tensor.name
        assert header.offset(name) == covered
        assert elements * BITS[tensor.dtype] == tensor.nbytes * 8
        covered += tensor.nbytes
    assert covered == file_size == header.file_size
    assert all(isinstance(text, str) for pair in header.metadata.items() for text in pair)


@given(st.binary(max_size=300), st.integers(0, 400))
@example(lfs_pointer(), 135)
@example(b"version ", 300)
def test_random_bytes_raise_nothing_but_broken_input(content: bytes, file_size: int) -> None:
    """Noise of any length, whatever size the file claims to have, is refused and never crashes the reader."""
    header = _parse(content, file_size)

    if header is not None:
        _assert_safe(header, file_size)


@settings(max_examples=400)
@given(st.data())
def test_mutations_of_a_valid_file_are_refused_or_safe(data: st.DataObject) -> None:
    """Flipped, dropped, repeated and inserted bytes never let a range leave the file."""
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        match data.draw(st.sampled_from(["set", "drop", "insert", "repeat"])):
            case "set":
                content[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "drop":
                del content[place : place + data.draw(st.integers(1, 30))]
            case "insert":
                content[place:place] = data.draw(
                    st.sampled_from([b"0", b"-", b"9" * 20, b"{", b"[", b",", b'"', b"\\"])
                )
            case "repeat":
                content[place:place] = content[place : place + data.draw(st.integers(1, 60))]

    header = _parse(bytes(content), len(content))

    if header is not None:
        _assert_safe(header, len(content))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_SIZE = st.integers(-1, 8) | st.sampled_from([2**32, 2**60, 2**63, 2**64, True, 1.0])


@st.composite
def _entries(draw: st.DrawFn) -> Any:
    entry: dict[str, Any] = {
        "dtype": draw(st.sampled_from([*BITS, "F8", "u8"])),
        "shape": draw(st.lists(_SIZE, max_size=3)),
        "data_offsets": draw(st.lists(_SIZE, min_size=2, max_size=2)),
    }
    if draw(st.integers(0, 9)) == 0:
        entry[draw(st.sampled_from(["dtype", "shape", "data_offsets", "x"]))] = draw(_JSON)
    return entry


@settings(max_examples=300)
@given(
    st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), _entries() | _JSON, max_size=3), st.integers(0, 40)
)
def test_headers_of_the_right_form_are_refused_or_safe(document: dict[str, Any], nbytes: int) -> None:
    """Well-formed JSON with lying values does not pass either."""
    content = raw_file(json.dumps(document), bytes(nbytes))

    header = _parse(content, len(content))

    if header is not None:
        _assert_safe(header, len(content))


@st.composite
def _plausible(draw: st.DrawFn) -> bytes:
    """Mostly valid files: every tensor sized right, sometimes shifted by one, sometimes cut."""
    header: dict[str, Any] = {"__metadata__": {"a": "b"}} if draw(st.booleans()) else {}
    end = 0
    for name in draw(st.lists(st.text(max_size=3), max_size=4, unique=True)):
        dtype = draw(st.sampled_from(sorted(BITS)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        elements = 1
        for extent in shape:
            elements *= extent
        start = end + draw(st.sampled_from([0] * 12 + [1, -1]))
        end = start + elements * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(max(0, end + draw(st.sampled_from([0] * 6 + [1, -1]))))


@settings(max_examples=300)
@given(_plausible())
def test_what_passes_here_passes_the_library_and_the_reverse(content: bytes) -> None:
    """On headers that only differ in places and sizes, this reader and safetensors' own agree."""
    header = _parse(content, len(content))
    try:
        theirs = dict(safetensors.deserialize(content))
    except safetensors.SafetensorError:
        theirs = None

    assert (theirs is None) is (header is None)
    if header is not None and theirs is not None:
        assert {name: (t.dtype, list(t.shape)) for name, t in header.tensors.items()} == {
            name: (t["dtype"], t["shape"]) for name, t in theirs.items()
        }


def test_every_truncation_and_every_extension_is_refused(tmp_path: Any) -> None:
    """A valid file has exactly one right length."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(VALID)
    assert len(read_header(path).tensors) == 4

    for size in [*range(len(VALID)), len(VALID) + 1, len(VALID) + 8]:
        path.write_bytes(VALID[:size].ljust(size, b"\0"))
        with pytest.raises(BrokenInput):
            read_header(path)
