"""The canonical layout against ``safetensors.torch.save_file``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from overlay.formats.header import read_header
from overlay.formats.layout import canonical_layout

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.uint32,
    torch.float32,
    torch.complex64,
    torch.float64,
    torch.int64,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}], ids=["no metadata", "one key"])
def test_equals_save_file(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """A file of every dtype that torch has, saved by the library, starts with exactly our header."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{place % 3}.{dtype}": torch.randint(0, 2, (2, place % 4), generator=generator).to(dtype)
        for place, dtype in enumerate(DTYPES)
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata)

    header = read_header(tmp_path / "x.safetensors")
    layout = canonical_layout(((t.name, t.dtype, t.shape) for t in header.tensors.values()), metadata or {})

    assert len(DTYPES) == len(header.tensors)
    assert header.canonical
    assert layout.header == (tmp_path / "x.safetensors").read_bytes()[: header.data_start]
    assert list(header.tensors.values()) == list(layout.tensors)
