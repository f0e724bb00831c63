"""The released checkpoint at its full size, of headers alone: 140 GB that take no room, and what a Hub sends of it.

Files are as long as the released ones, with their headers, and empty behind them. What the server sends of a weight
file is recorded, and all that lies beyond a look at a header is payload.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import hub_content

from overlay.demo import checkpoint, shards
from overlay.formats.layout import canonical_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pytest
    from hub_server import HubServer

    from overlay.demo.checkpoint import HubFolder
    from overlay.demo.tensors import Tensor

__all__ = ["LARGEST_LOOK", "payload_sent", "write_paper_hub"]

BLOCKS = 50
LARGEST_LOOK = 1_000_000
"""Bytes from a file's start that count as a look at its header."""

_real_digests = hub_content._digests


def write_paper_hub(folder: Path, patch: pytest.MonkeyPatch) -> HubFolder:
    """The repos of VDN-H3 with 50 blocks: 14 shards, 800 tensors in the branch, 14 shards of text encoder."""
    patch.setattr(shards, "write_tensors", _write_header)
    patch.setattr(checkpoint, "write_tensors", _write_header)
    patch.setattr(hub_content, "_digests", _digests)
    hub = checkpoint.write_hub(folder, preset="release-dims", blocks=BLOCKS, spec_name="adapter_config.json")
    _write_text_encoder(hub.needs_folder / "text_encoder")
    return hub


def payload_sent(server: HubServer) -> int:
    """Bytes of weights that were sent: downloads, and ranges that do not start a file or go beyond its header."""
    return sum(
        request.sent
        for request in server.asked("GET", "*.safetensors")
        if request.range is None or not _is_look(request.range)
    )


def _is_look(asked: str) -> bool:
    _, _, last = asked.removeprefix("bytes=").partition("-")
    return last != "" and int(last) < LARGEST_LOOK


def _write_header(
    path: Path,
    tensors: Iterable[Tensor],
    _weights: Any,
    _scope: str,
    *,
    metadata: Mapping[str, str] | None = None,
    **_values: Any,
) -> None:
    layout = canonical_layout(tensors, metadata or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(layout.header)
    os.truncate(path, layout.file_size)


def _digests(file: Path, size: int) -> tuple[str, str]:
    """Digests of a file by its header and its size, where it is long; nobody reads 140 GB of nothing for them."""
    if size <= LARGEST_LOOK:
        return _real_digests(file, size)
    with file.open("rb") as stream:
        known = stream.read(LARGEST_LOOK) + str(size).encode()
    return hashlib.sha256(known).hexdigest(), hashlib.sha1(known, usedforsecurity=False).hexdigest()


def _write_text_encoder(folder: Path) -> None:
    """64 layers of 5120 in 14 shards, 66 GB."""
    for path in folder.glob("model*"):
        path.unlink()
    tensors: list[Tensor] = [
        (f"model.language_model.layers.{layer}.{name}.weight", "BF16", shape)
        for layer in range(64)
        for name, shape in {
            "self_attn.q_proj": (8192, 5120),
            "self_attn.k_proj": (1024, 5120),
            "self_attn.v_proj": (1024, 5120),
            "self_attn.o_proj": (5120, 8192),
            "mlp.gate_proj": (25600, 5120),
            "mlp.up_proj": (25600, 5120),
            "mlp.down_proj": (5120, 25600),
            "input_layernorm": (5120,),
        }.items()
    ]
    shards.write_shards(folder, tensors, None, "text_encoder", limit=4_800_000_000, stem="model")  # type: ignore[arg-type]
    assert json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
