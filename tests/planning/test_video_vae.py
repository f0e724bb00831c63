"""The video VAE: names and row orders, by a plain reading of what the plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.tensors import f32, write_checkpoint

from overlay.errors import BrokenInput
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder
from overlay.planning.outputs import Range, SafetensorsFile, Zeros
from overlay.planning.plan import InputBook
from overlay.planning.video_vae import relaid_video_vae

if TYPE_CHECKING:
    from pathlib import Path

    from support.tensors import Tensor

pytestmark = pytest.mark.no_torch

HEADS, DIM = 2, 3


def numbered(rows: int, *rest: int, start: int = 0) -> Tensor:
    """Every element another value."""
    count = rows
    for size in rest:
        count *= size
    return f32([rows, *rest], range(start, start + count))


def relaid(folder: Path, tensors: dict[str, Tensor]) -> tuple[SafetensorsFile, dict[str, bytes]]:
    """The planned file, and the bytes of its tensors."""
    half = len(tensors) // 2
    names = list(tensors)
    shards = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    write_checkpoint(folder / "vae", {shard: {n: tensors[n] for n in held} for shard, held in shards.items()})
    files = Folder(folder)
    book = InputBook(files, "org/vae", "0" * 40, lambda path: f"sha256:{path}")
    spec = relaid_video_vae(book, read_checkpoint(files, "vae"), num_heads=HEADS, head_dim=DIM, out_path="out")

    def data(piece: object) -> bytes:
        if isinstance(piece, Zeros):
            return bytes(piece.nbytes)
        assert isinstance(piece, Range)
        return (folder / piece.input.path).read_bytes()[piece.offset : piece.offset + piece.nbytes]

    return spec, {tensor.name: b"".join(map(data, tensor.pieces)) for tensor in spec.tensors}


def attention(rest: tuple[int, ...] = (5,), name: str = "decoder.blocks.0.attn") -> dict[str, Tensor]:
    rows = HEADS * DIM
    return {f"{name}.to_{part}.weight": numbered(rows, *rest, start=1000 * i) for i, part in enumerate("qkv")}


BASE = {"x": numbered(1), **attention()}


def test_q_k_v_are_interleaved_per_head(tmp_path: Path) -> None:
    """Head 0: its rows of q, of k, of v; then head 1; weights and biases alike."""
    biases = {name.replace("weight", "bias"): tensor for name, tensor in attention(()).items()}
    spec, data = relaid(tmp_path, {**attention((5,)), **biases})
    shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
    assert shapes["decoder.blocks.0.attn.to_qkv.weight"] == (3 * HEADS * DIM, 5)
    assert shapes["decoder.blocks.0.attn.to_qkv.bias"] == (3 * HEADS * DIM,)
    for kind, width in (("weight", 5), ("bias", 1)):
        rows = [
            1000 * part + width * (DIM * head + row) for head in range(HEADS) for part in range(3) for row in range(DIM)
        ]
        _, _, expected = f32([len(rows), width], [start + i for start in rows for i in range(width)])
        assert data[f"decoder.blocks.0.attn.to_qkv.{kind}"] == expected


def test_the_halves_of_a_gated_layer_change_places(tmp_path: Path) -> None:
    """Value and gate become gate and value, rows of more than two dimensions included."""
    tensors = {"decoder.b.0.ff.net.0.proj.weight": numbered(4, 2, 2), "decoder.b.0.ff.net.0.proj.bias": numbered(4)}
    spec, data = relaid(tmp_path, {**BASE, **tensors})
    assert data["decoder.b.0.ff.w1.weight"] == f32([4, 2, 2], [*range(8, 16), *range(8)])[2]
    assert data["decoder.b.0.ff.w1.bias"] == f32([4], [2, 3, 0, 1])[2]
    assert {t.name: t.shape for t in spec.tensors}["decoder.b.0.ff.w1.weight"] == (4, 2, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decoder.proj_in.weight", "decoder.x_embedder.weight"),
        ("encoder.proj_in.weight", "encoder.proj_in.weight"),
        ("decoder.blocks.3.attn.to_out.0.weight", "decoder.blocks.3.attn.to_out.weight"),
        ("decoder.blocks.3.ff.net.2.bias", "decoder.blocks.3.ff.w2.bias"),
        ("encoder.down_blocks.1.resnets.0.conv1.weight", "encoder.down.1.block.0.conv1.weight"),
        ("encoder.down_blocks.10.resnets.12.norm2.bias", "encoder.down.10.block.12.norm2.bias"),
        ("encoder.down_blocks.2.resnets.1.conv_shortcut.weight", "encoder.down.2.block.1.nin_shortcut.weight"),
        ("encoder.down_blocks.2.resnets.1.conv_shortcut.conv.bias", "encoder.down.2.block.1.nin_shortcut.conv.bias"),
        ("encoder.down_blocks.0.downsamplers.0.conv.weight", "encoder.down.0.downsample.conv.weight"),
        ("encoder.down_blocks.0.downsamplers.3.conv.weight", "encoder.down.0.downsample.conv.weight"),
        ("decoder.down_blocks.0.resnets.0.conv1.weight", "decoder.down_blocks.0.resnets.0.conv1.weight"),
        ("decoder.norm_out.weight", "decoder.norm_out.weight"),
        ("quant_conv.weight", "quant_conv.weight"),
    ],
)
def test_names(tmp_path: Path, old: str, new: str) -> None:
    """The released script's renames; what it does not name keeps its name; bytes stay."""
    _, data = relaid(tmp_path, {**BASE, old: numbered(2, 3)})
    assert data[new] == numbered(2, 3)[2]
    assert new == old or old not in data


def test_a_mask_token_of_zeros_is_added_and_no_metadata(tmp_path: Path) -> None:
    """fp32, (1, 1, heads * head_dim)."""
    spec, data = relaid(tmp_path, BASE)
    [mask] = [tensor for tensor in spec.tensors if tensor.name == "decoder.mask_token"]
    assert (mask.dtype, mask.shape, data["decoder.mask_token"]) == ("F32", (1, 1, HEADS * DIM), bytes(4 * HEADS * DIM))
    assert spec.metadata == {}
    assert {tensor.name for tensor in spec.tensors} == {
        "x",
        "decoder.mask_token",
        "decoder.blocks.0.attn.to_qkv.weight",
    }


def test_odd_tensors_pass(tmp_path: Path) -> None:
    """Scalars, empty tensors, other dtypes."""
    odd: dict[str, Tensor] = {"s": ("F64", [], bytes(8)), "e": ("F32", [0, 3], b""), "i": ("I64", [2], bytes(16))}
    spec, data = relaid(tmp_path, {**BASE, **odd})
    assert {t.name: (t.dtype, t.shape) for t in spec.tensors if t.name in odd} == {
        "s": ("F64", ()),
        "e": ("F32", (0, 3)),
        "i": ("I64", (2,)),
    }
    assert (data["s"], data["e"], data["i"]) == (bytes(8), b"", bytes(16))


@pytest.mark.parametrize("part", "qkv")
def test_an_incomplete_triple_is_an_error(tmp_path: Path, part: str) -> None:
    """Whichever is missing is named."""
    tensors = attention()
    del tensors[f"decoder.blocks.0.attn.to_{part}.weight"]
    with pytest.raises(BrokenInput, match=rf"to_{part}\.weight") as caught:
        relaid(tmp_path, {"x": numbered(1), **tensors})
    assert caught.value.code == "incomplete-qkv"
    assert caught.value.data["missing"] == [f"decoder.blocks.0.attn.to_{part}.weight"]


@pytest.mark.parametrize(
    "change",
    [
        {"decoder.blocks.0.attn.to_k.weight": numbered(HEADS * DIM, 4)},
        {"decoder.blocks.0.attn.to_v.weight": numbered(HEADS * DIM + 1, 5)},
        {"decoder.blocks.0.attn.to_k.weight": ("F16", [HEADS * DIM, 5], bytes(2 * HEADS * DIM * 5))},
        attention((5,)) | {f"decoder.blocks.0.attn.to_{p}.weight": numbered(4, 5) for p in "qkv"},
        {f"decoder.blocks.0.attn.to_{p}.weight": f32([], [1.0]) for p in "qkv"},
        {"y.ff.net.0.proj.weight": numbered(3, 2)},
        {"y.ff.net.0.proj.bias": f32([], [1.0])},
    ],
)
def test_shapes_that_do_not_fit_are_errors(tmp_path: Path, change: dict[str, Tensor]) -> None:
    """Unequal parts, other dtypes, rows that are not heads times head_dim, an odd number of rows."""
    with pytest.raises(BrokenInput) as caught:
        relaid(tmp_path, {**BASE, **change})
    assert caught.value.code == "tensor-shape"
    assert caught.value.data["tensor"] in caught.value.message


@pytest.mark.parametrize(
    "names",
    [
        ("decoder.mask_token",),
        ("decoder.blocks.0.attn.to_qkv.weight",),
        ("encoder.down_blocks.0.downsamplers.0.conv.weight", "encoder.down_blocks.0.downsamplers.1.conv.weight"),
        ("a.ff.net.2.bias", "a.ff.w2.bias"),
    ],
)
def test_two_tensors_that_would_get_one_name_are_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Neither is dropped."""
    with pytest.raises(BrokenInput, match="two tensors would be called") as caught:
        relaid(tmp_path, {**BASE, **{name: numbered(2) for name in names}})
    assert caught.value.code == "tensor-collision"
