"""The canonical layout against the safetensors library itself."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import TensorSpec, serialize

from overlay.errors import BrokenInput
from overlay.formats.dtypes import BITS, ORDER, tensor_nbytes
from overlay.formats.header import parse_header
from overlay.formats.layout import canonical_layout

pytestmark = pytest.mark.no_torch

LIBRARY_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "F4": "float4_e2m1fn_x2",
}
"""Every dtype that safetensors 0.8 can write; it reads F6_E2M3 and F6_E3M2, and cannot write them."""

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def _library(tensors: Tensors, metadata: dict[str, str] | None) -> bytes:
    buffers = {name: ctypes.create_string_buffer(data, max(1, len(data))) for name, (_, _, data) in tensors.items()}
    specs = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F4":  # the library takes the shape in pairs, and writes it in elements
            shape = (*shape[:-1], shape[-1] // 2)  # noqa: PLW2901  # the same shape in the library's unit
        specs[name] = TensorSpec(
            dtype=LIBRARY_NAMES[dtype],
            shape=list(shape),
            data_ptr=ctypes.addressof(buffers[name]),
            data_len=len(data),
        )
    return serialize(specs, metadata)


def _ours(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    layout = canonical_layout(((name, dtype, shape) for name, (dtype, shape, _) in tensors.items()), metadata)
    content = layout.header + b"".join(tensors[tensor.name][2] for tensor in layout.tensors)
    assert layout.file_size == len(content)
    return content


@st.composite
def _tensor(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    dtype = draw(st.sampled_from(sorted(LIBRARY_NAMES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    if dtype == "F4":
        shape = [*shape, 2 * draw(st.integers(0, 3))]
    nbytes = math.prod(shape) * BITS[dtype] // 8
    return dtype, tuple(shape), draw(st.binary(min_size=nbytes, max_size=nbytes))


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_names = _text.filter(lambda name: name != "__metadata__")


@settings(max_examples=400)
@given(st.dictionaries(_names, _tensor(), max_size=8), st.dictionaries(_text, _text, max_size=1), st.randoms())
def test_equals_the_library_byte_for_byte(tensors: Tensors, metadata: dict[str, str], random: Any) -> None:
    """With at most one metadata key the library is deterministic, and whole files are the same."""
    shuffled = list(tensors.items())
    random.shuffle(shuffled)

    assert _library(tensors, metadata or None) == _ours(dict(shuffled), metadata)


@settings(max_examples=100)
@given(st.dictionaries(_names, _tensor(), max_size=4), st.dictionaries(_text, _text, min_size=2, max_size=5))
def test_more_metadata_keys_are_sorted(tensors: Tensors, metadata: dict[str, str]) -> None:
    """Where the library's order of metadata is random, ours is sorted and all the rest is the same."""
    theirs = _library(tensors, metadata)
    ours = _ours(tensors, dict(reversed(metadata.items())))
    parsed = parse_header(ours, len(ours), "ours")

    assert sorted(metadata) == list(parsed.metadata)
    assert metadata == parsed.metadata
    assert sorted(theirs) == sorted(ours)
    assert parsed.tensors == parse_header(theirs, len(theirs), "theirs").tensors
    assert parsed.canonical


@settings(max_examples=100)
@given(st.dictionaries(_names, _tensor(), max_size=6), st.dictionaries(_text, _text, max_size=3))
def test_what_is_laid_out_reads_back(tensors: Tensors, metadata: dict[str, str]) -> None:
    """The reader finds in a canonical file what was laid out, and calls it canonical."""
    content = _ours(tensors, metadata)

    header = parse_header(content, len(content), "x")

    assert header.canonical
    assert metadata == header.metadata
    assert {n: (t.dtype, t.shape) for n, t in header.tensors.items()} == {n: t[:2] for n, t in tensors.items()}


@settings(max_examples=100)
@given(st.dictionaries(_names, _tensor(), max_size=6), st.dictionaries(_text, _text, max_size=1))
def test_files_of_the_library_are_called_canonical(tensors: Tensors, metadata: dict[str, str]) -> None:
    """A base that the library saved need not be rewritten."""
    content = _library(tensors, metadata or None)

    assert parse_header(content, len(content), "x").canonical


def test_every_dtype_in_the_librarys_order() -> None:
    """One tensor of each dtype: the order of the file is the library's, and the dtypes that it cannot write fit in."""
    tensors = {f"t{i}": (dtype, (2,), bytes(BITS[dtype] // 4)) for i, dtype in enumerate(sorted(LIBRARY_NAMES))}

    assert _library(tensors, None) == _ours(tensors, {})
    placed = [tensor.dtype for tensor in canonical_layout(((d, d, (8,)) for d in sorted(ORDER)), {}).tensors]
    assert list(ORDER) == placed
    assert set(ORDER) - set(LIBRARY_NAMES) == {"F6_E2M3", "F6_E3M2"}


def test_known_bytes() -> None:
    """The layout of a small file, written out."""
    layout = canonical_layout([("b", "U8", (3,)), ("a", "BF16", ())], {"format": "pt"})

    text = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},'
        b'"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}}       '
    )
    assert len(text).to_bytes(8, "little") + text == layout.header
    assert len(layout.header) + 5 == layout.file_size


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        pytest.param([("a", "U8", ()), ("a", "I8", ())], "duplicate-tensor", id="name twice"),
        pytest.param([("__metadata__", "U8", ())], "duplicate-tensor", id="reserved name"),
        pytest.param([("a", "F128", ())], "unknown-dtype", id="dtype"),
        pytest.param([("a", "F4", (3,))], "bad-shape", id="half a byte"),
        pytest.param([("a", "U8", (2**40, 2**40))], "bad-shape", id="overflow"),
    ],
)
def test_impossible_files_are_refused(tensors: list[tuple[str, str, tuple[int, ...]]], code: str) -> None:
    """What no reader could read is not laid out, and the message names file and tensor."""
    with pytest.raises(BrokenInput, match=r"^out\.safetensors: ") as caught:
        canonical_layout(tensors, {}, "out.safetensors")

    assert code == caught.value.code
    assert tensors[0][0] in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("F32", (), 4),
        ("BF16", (3, 5), 30),
        ("BOOL", (7,), 7),
        ("C64", (2,), 16),
        ("F4", (2, 3), 3),
        ("F6_E3M2", (4,), 3),
        ("U64", (0, 10), 0),
    ],
)
def test_tensor_sizes(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    """Elements times bits, in bytes."""
    assert nbytes == tensor_nbytes(dtype, shape)
