"""Weights that look like weights, at the speed of a memory copy: bytes from a seed and a name, the same everywhere.

One table of random values is expanded from SHAKE-128 for each dtype and distribution. A tensor is a run of chunks, and
every chunk is a slice of the table whose place is the BLAKE2b hash of preset, seed, scope, name and chunk number. So
nothing depends on a library's random generator, on the host, or on the order in which tensors are asked for.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Weights"]

_TABLE = 8 * 2**20
_CHUNK = 2**20
_SMALL_TABLE = 2**15
_ITEM = {"BF16": 2, "F32": 4}

# Upper byte of a bf16 (and of an fp32): sign and all but the last bit of the exponent, so one value spans two octaves
# and the lower byte, which is uniform, picks the place in them. These counts of 128 give a standard deviation of 0.02.
_OCTAVES = {0x3A: 5, 0x3B: 22, 0x3C: 98, 0x3D: 3}
_MAGNITUDES = bytes(upper for upper, count in _OCTAVES.items() for _ in range(count))
_UPPER_BYTES = _MAGNITUDES + bytes(upper | 0x80 for upper in _MAGNITUDES)

# Both zeros and both ends of the subnormals, as bf16, at the head of every weight that has room for them.
_EDGES = (0x0000, 0x8000, 0x0001, 0x807F)
_EDGES_FROM = 64

_GAIN = re.compile(r"(^|\.)(\w*norm\w*\.weight|weight_g)$|^encoder\..*\.alpha$")
_RANGES = {"gain": (0.75, 1.25), "decay": (-4.0, 0.75)}


class Weights:
    """The values of every tensor of one made checkpoint.

    Gains of norms lie around 1, ``A_log`` where a state's decay is between 0.2 and 0.99, frozen zeros are zero, and
    everything else has a standard deviation of about 0.02, with no NaN and no infinity.
    """

    def __init__(self, preset: str, seed: int) -> None:
        self._root = f"{preset}/{seed}"
        self._tables: dict[tuple[str, str], memoryview] = {}

    def chunks(self, scope: str, name: str, dtype: str, nbytes: int) -> Iterator[memoryview]:
        """Yield the bytes of a tensor, little-endian, in consecutive chunks of at most 1 MiB.

        Args:
            scope: What the tensor belongs to, so that equal names of two files differ.
            name: The tensor's name, which also decides how its values are distributed.
            dtype: BF16 or F32.
            nbytes: Size of the tensor.
        """
        kind = _kind(name)
        table = self._table(dtype, kind)
        size, item = min(_CHUNK, len(table) // 2), _ITEM[dtype]
        places = (len(table) - size) // item
        for index, start in enumerate(range(0, nbytes, size)):
            digest = hashlib.blake2b(f"{self._root}/{scope}/{name}/{index}".encode(), digest_size=8).digest()
            place = int.from_bytes(digest, "little") % places * item
            chunk = table[place : place + min(size, nbytes - start)]
            if start == 0 and kind == "weight" and nbytes >= _EDGES_FROM * item:
                chunk = memoryview(_edges(dtype) + bytes(chunk[len(_EDGES) * item :]))
            yield chunk

    def _table(self, dtype: str, kind: str) -> memoryview:
        if (dtype, kind) not in self._tables:
            self._tables[dtype, kind] = memoryview(self._make_table(dtype, kind)).toreadonly()
        return self._tables[dtype, kind]

    def _make_table(self, dtype: str, kind: str) -> bytes | bytearray:
        if kind == "zero":
            return bytes(_SMALL_TABLE)
        item = _ITEM[dtype]
        size = _TABLE if kind == "weight" else _SMALL_TABLE
        noise = hashlib.shake_128(f"{self._root}/{dtype}/{kind}".encode()).digest(size)
        if kind == "weight":
            table = bytearray(noise)
            table[item - 1 :: item] = noise[item - 1 :: item].translate(_UPPER_BYTES)
            return table
        low, high = _RANGES[kind]
        values = (low + (high - low) * uniform / 2**16 for (uniform,) in struct.iter_unpack("<H", noise))
        return b"".join(struct.pack("<f", value)[4 - item :] for value in values)


def _kind(name: str) -> str:
    if name.endswith("zero_k_bias"):
        return "zero"
    if name.endswith("A_log"):
        return "decay"
    return "gain" if _GAIN.search(name) else "weight"


def _edges(dtype: str) -> bytes:
    # An fp32 whose upper half is a bf16 subnormal is one of fp32, too.
    return b"".join(struct.pack("<H", edge).rjust(_ITEM[dtype], b"\0") for edge in _EDGES)
