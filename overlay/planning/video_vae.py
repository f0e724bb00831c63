"""The MiniMax-H3 video VAE: from the sharded diffusers layout to the one file that the VDN runtime loads.

Only names and the order of rows change, so every output tensor is a list of byte ranges of the inputs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.dtypes import tensor_nbytes
from overlay.planning.fuse import copied_tensor
from overlay.planning.outputs import OutputTensor, Range, SafetensorsFile, Zeros

if TYPE_CHECKING:
    from overlay.formats.checkpoint import Checkpoint
    from overlay.formats.header import TensorInfo
    from overlay.planning.plan import InputBook

__all__ = ["relaid_video_vae"]

QKV = re.compile(r"(?P<head>.*\.attn)\.to_(?P<part>[qkv])\.(?P<tail>.*)")
RENAMES = (
    (re.compile(r"^decoder\.proj_in\."), "decoder.x_embedder."),
    (re.compile(r"\.attn\.to_out\.0\."), ".attn.to_out."),
    (re.compile(r"\.ff\.net\.2\."), ".ff.w2."),
    (re.compile(r"^(encoder)\.down_blocks\.(\d+)\.resnets\.(\d+)\.conv_shortcut"), r"\1.down.\2.block.\3.nin_shortcut"),
    (re.compile(r"^(encoder)\.down_blocks\.(\d+)\.resnets\.(\d+)\."), r"\1.down.\2.block.\3."),
    (re.compile(r"^(encoder)\.down_blocks\.(\d+)\.downsamplers\.\d+\."), r"\1.down.\2.downsample."),
)


def relaid_video_vae(
    book: InputBook, checkpoint: Checkpoint, *, num_heads: int, head_dim: int, out_path: str
) -> SafetensorsFile:
    """One file with the runtime's names and row orders; no metadata.

    q, k and v rows are interleaved per head, (3, heads, head_dim, rest) to (heads, 3, head_dim, rest); the two row
    halves of a gated feed-forward change places; ``decoder.mask_token`` is added as zeros.

    Raises:
        BrokenInput: A q/k/v triple is incomplete, a shape does not fit the config, or two tensors get one name.
    """
    layout = _Relayout(book, checkpoint, num_heads, head_dim)
    names = sorted(checkpoint.weight_map)
    tensors = [tensor for name in names if (tensor := layout.tensor(name)) is not None]
    mask_shape = (1, 1, num_heads * head_dim)
    tensors.append(OutputTensor("decoder.mask_token", "F32", mask_shape, (Zeros(tensor_nbytes("F32", mask_shape)),)))
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BrokenInput(
                f"{layout.where}: two tensors would be called {tensor.name}",
                code="tensor-collision",
                tensor=tensor.name,
            )
        seen.add(tensor.name)
    return SafetensorsFile(out_path, {}, tuple(tensors))


class _Relayout:
    def __init__(self, book: InputBook, checkpoint: Checkpoint, num_heads: int, head_dim: int) -> None:
        self._book = book
        self._checkpoint = checkpoint
        self._num_heads = num_heads
        self._head_dim = head_dim
        self.where = book.files.where(checkpoint.folder)

    def tensor(self, name: str) -> OutputTensor | None:
        """The output tensor that ``name`` stands for; None for k and v, which their q brings along."""
        if match := QKV.fullmatch(name):
            triple = [f"{match['head']}.to_{part}.{match['tail']}" for part in "qkv"]
            missing = [other for other in triple if other not in self._checkpoint.weight_map]
            if missing:
                raise BrokenInput(
                    f"{self.where}: {name} lacks its companion {', '.join(missing)}",
                    code="incomplete-qkv",
                    hint="the VAE is incomplete: download it again",
                    missing=missing,
                )
            return (
                self._interleaved(triple, f"{match['head']}.to_qkv.{match['tail']}") if match["part"] == "q" else None
            )
        if ".ff.net.0.proj." in name:
            return self._halves_swapped(name, name.replace(".ff.net.0.proj.", ".ff.w1."))
        renamed = name
        for pattern, replacement in RENAMES:
            renamed = pattern.sub(replacement, renamed, count=1)
        path, _, _ = self._input(name)
        header = self._checkpoint.shards[self._checkpoint.weight_map[name]]
        return copied_tensor(header, self._book, path, name, renamed)

    def _input(self, name: str) -> tuple[str, TensorInfo, int]:
        shard, info = self._checkpoint.tensor(name)
        return self._checkpoint.path(shard), info, self._checkpoint.shards[shard].offset(name)

    def _rows(self, name: str, start: int, count: int) -> Range:
        path, info, offset = self._input(name)
        row = info.nbytes // info.shape[0]
        return Range(self._book(path), offset + start * row, count * row)

    def _interleaved(self, triple: list[str], new_name: str) -> OutputTensor:
        _, info, _ = self._input(triple[0])
        rows = self._num_heads * self._head_dim
        for name in triple:
            _, other, _ = self._input(name)
            if (other.dtype, other.shape) != (info.dtype, info.shape) or not other.shape or other.shape[0] != rows:
                raise BrokenInput(
                    f"{self.where}: {name} is {other.dtype} {list(other.shape)}; "
                    f"expected {info.dtype} with {rows} rows ({self._num_heads} heads of {self._head_dim})",
                    code="tensor-shape",
                    tensor=name,
                )
        pieces = tuple(
            self._rows(name, head * self._head_dim, self._head_dim)
            for head in range(self._num_heads)
            for name in triple
        )
        return OutputTensor(new_name, info.dtype, (3 * rows, *info.shape[1:]), pieces)

    def _halves_swapped(self, name: str, new_name: str) -> OutputTensor:
        _, info, _ = self._input(name)
        if not info.shape or info.shape[0] % 2:
            raise BrokenInput(
                f"{self.where}: {name} is {list(info.shape)}; expected an even number of rows (value and gate)",
                code="tensor-shape",
                tensor=name,
            )
        half = info.shape[0] // 2
        return OutputTensor(new_name, info.dtype, info.shape, (self._rows(name, half, half), self._rows(name, 0, half)))
