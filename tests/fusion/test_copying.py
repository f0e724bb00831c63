from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuse_files import Store, data_of, seeded

from overlay.fingerprint import BLOCK, bytes_digest
from overlay.planning.outputs import Fused, Literal, OutputTensor, Range, Term, Zeros

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def tensor(name: str, dtype: str, *pieces: Range | Literal | Zeros) -> OutputTensor:
    """A 1-d tensor of pieces."""
    size = {"U8": 1, "BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
    return OutputTensor(name, dtype, (sum(piece.nbytes for piece in pieces) // size,), pieces)


def digest_by_parts(path: Path) -> str:
    """The fingerprint of a safetensors file from the digests of its header and of what lies behind it."""
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    spans = sorted(item["data_offsets"] for name, item in json.loads(content[8:start]).items() if name[0] != "_")
    parts = [content[:start], *(content[start + first : start + end] for first, end in spans)]
    digests = [bytes.fromhex(bytes_digest(part, "xxh3_128").partition(":")[2]) for part in parts]
    return f"safetensors_xxh3_128:{xxhash.xxh3_128_hexdigest(b''.join(digests))}"


def test_pieces_follow_each_other_in_canonical_order(tmp_path: Path) -> None:
    """Ranges, literals and zeros are laid out as written; digests are those of the bytes on disk."""
    store = Store(tmp_path)
    first, second = store.put("in", b"abcdefgh", b"ijkl")
    built = store.build(
        [
            tensor("z", "F32", second, Literal(b"1234"), Zeros(8)),
            tensor("b", "U8", Range(first.input, first.offset + 2, 3)),
            tensor("a", "BF16", first),
            OutputTensor("scalar", "F32", (), (Literal(b"\0\0\x80?"),)),
            OutputTensor("empty", "F32", (0, 3), ()),
        ],
        tmp_path / "out",
        None,
    )
    parts = {"empty": b"", "scalar": b"\0\0\x80?", "z": b"ijkl1234" + bytes(8), "a": b"abcdefgh", "b": b"cde"}
    assert data_of(tmp_path / "out") == b"".join(parts.values())
    assert [t.name for t in built.tensors] == list(parts)
    assert {t.name: t.digest for t in built.tensors} == {
        name: bytes_digest(data, "xxh3_128") for name, data in parts.items()
    }
    assert built.digest == digest_by_parts(tmp_path / "out")
    assert built.size == (tmp_path / "out").stat().st_size
    assert (built.bytes_read, built.bytes_written, built.kernels) == (8 + 4 + 3, 31, {})
    assert store.opened == ["in"]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=6),
    unit=st.integers(1, 16),
    jobs=st.integers(1, 4),
    memory=st.sampled_from([1, 2**26, 2**30]),
)
def test_units_threads_and_memory_do_not_change_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], unit: int, jobs: int, memory: int
) -> None:
    """Any tensors of any pieces come out whole however the work is cut, and progress adds up."""
    folder = tmp_path_factory.mktemp("copy")
    store, dice = Store(folder), seeded(1)
    tensors, expected = [], b""
    for index, sizes in enumerate(lengths):
        parts = [dice.randbytes(size) for size in sizes]
        ranges = store.put(f"in{index}", *parts)
        tensors.append(tensor(f"t{index}", "U8", *ranges))
        expected += b"".join(parts)
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.fingerprint.parts.BLOCK", unit)
        store.build(tensors, folder / "out", None, jobs=jobs, memory=memory, progress=seen.append)
    assert data_of(folder / "out") == expected
    assert sum(seen) == (folder / "out").stat().st_size


def test_a_tensor_over_several_blocks_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    """Two blocks and a bit, behind a tensor that shifts them in the file."""
    store = Store(tmp_path)
    data = seeded(2).randbytes(2**20) * 33 + b"tail"
    [held] = store.put("in", data)
    built = store.build([tensor("a", "F32", Zeros(4)), tensor("b", "U8", held)], tmp_path / "out", None)
    assert len(data) > 2 * BLOCK
    assert built.tensors[1].digest == bytes_digest(data, "xxh3_128")
    assert built.digest == digest_by_parts(tmp_path / "out")


def test_a_fused_weight_needs_an_engine(tmp_path: Path) -> None:
    """A plan with a fused piece and no engine is a mistake of the caller, and leaves no file."""
    store = Store(tmp_path)
    w, a, b = store.put("in", bytes(2), bytes(2), bytes(2))
    term = Term("x", "A", "B", a, b, "BF16", 1, 1.0)
    fused = OutputTensor("w", "BF16", (1, 1), (Fused.whole(w, "BF16", 1, 1, (term,)),))
    with pytest.raises(ValueError, match="needs an engine"):
        store.build([fused], tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_pieces_must_add_up_to_the_tensor(tmp_path: Path) -> None:
    """A tensor that its pieces do not fill is refused before anything is written into it."""
    short = OutputTensor("w", "U8", (5,), (Zeros(4),))
    with pytest.raises(ValueError, match="w: pieces of 4 bytes, 5 wanted"):
        Store(tmp_path).build([short], tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_the_header_holds_metadata_in_order(tmp_path: Path) -> None:
    """The file begins with the canonical header."""
    Store(tmp_path).build([tensor("b", "U8", Zeros(1))], tmp_path / "out", None)
    content = (tmp_path / "out").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    }


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_the_mode_comes_from_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """Unlike the library's files, which are 0600 whatever the umask."""
    before = os.umask(umask)
    try:
        Store(tmp_path).build([tensor("b", "U8", Zeros(1))], tmp_path / "out", None)
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode
