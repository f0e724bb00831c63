"""An OpenVDN checkpoint stage: its small JSON files, checked to be of known versions, and its branch's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from overlay.formats.files import Files

__all__ = ["linear_branch_shapes", "read_linear_branch", "read_stage_metadata"]


def read_linear_branch(files: Files, path: str) -> dict[str, Any]:
    """``linear_branch/config.json``, whole; its ``config`` object is what the runtime's config is extended by.

    Raises:
        BrokenInput: Not ``type`` "hybrid_attention" of ``version`` 2 with a ``config`` object.
    """
    document = parse_object(files.read_bytes(path), files.where(path))
    _expect(document, {"type": "hybrid_attention", "version": 2}, files.where(path))
    if not isinstance(document.get("config"), dict):
        raise BrokenInput(
            f"{files.where(path)}: config is {document.get('config')!r}, expected an object",
            code="bad-linear-branch",
            hint="download the file again",
            where=files.where(path),
        )
    return document


def linear_branch_shapes(width: int, num_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """The linear branch's 16 tensors of every block, by their name after ``transformer_blocks.<block>.attn.``.

    With short convolutions on k and v: spatial (``sp``) ones of 5 x 5, temporal (``tm``) ones of 5.

    Args:
        width: The base's ``hidden_size``.
        num_heads: The base's ``num_attention_heads``; ``head_dim`` its ``attention_head_dim``.
    """
    inner = num_heads * head_dim
    return {
        "linear_attention.alpha.A_log": (num_heads,),
        "linear_attention.alpha.dt_bias": (inner,),
        "linear_attention.alpha.down.weight": (head_dim, width),
        "linear_attention.alpha.up.weight": (inner, head_dim),
        "linear_attention.beta_proj.weight": (num_heads, width),
        "linear_attention.norm.weight": (head_dim,),
        "linear_attention.output_gate.down.weight": (head_dim, width),
        "linear_attention.output_gate.up.weight": (inner, head_dim),
        "linear_attention.output_gate.up.bias": (inner,),
        "linear_attention.short_conv.k_sp.weight": (inner, 1, 5, 5),
        "linear_attention.short_conv.v_sp.weight": (inner, 1, 5, 5),
        "linear_attention.short_conv.k_tm.weight": (inner, 1, 5),
        "linear_attention.short_conv.v_tm.weight": (inner, 1, 5),
        "softmax_gate.up.weight": (num_heads, width),
        "softmax_gate.up.bias": (num_heads,),
        "to_out_linear.weight": (width, inner),
    }


def read_stage_metadata(files: Files, path: str) -> dict[str, Any]:
    """``metadata.json`` of a stage, whole.

    Raises:
        BrokenInput: Not ``checkpoint_format_version`` 2 of ``kind`` "weights".
    """
    document = parse_object(files.read_bytes(path), files.where(path))
    _expect(document, {"checkpoint_format_version": 2, "kind": "weights"}, files.where(path))
    return document


def _expect(document: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    for key, value in wanted.items():
        found = document.get(key)
        if type(found) is not type(value) or found != value:
            raise BrokenInput(
                f"{where}: {key} is {found!r}, expected {value!r}",
                code="unknown-version",
                hint="this revision of the checkpoint needs a newer release of this program",
                where=where,
                key=key,
            )
