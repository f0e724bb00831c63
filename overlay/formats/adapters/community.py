"""Adapters without a JSON beside them: what the file itself says about rank and alpha.

In this order:

- metadata ``lora_adapter_metadata``, as diffusers writes it: a PEFT config as JSON text, its keys with or without the
  component's name in front (``transformer.r``);
- one scalar tensor ``<module>.alpha`` a module, as kohya's trainers write them;
- metadata ``alpha`` (or ``lora_alpha``, ``ss_network_alpha``), one number for all pairs, which must then have one rank;
  metadata ``rank`` (or ``r``, ``lora_rank``, ``ss_network_dim``) is checked against the tensors;
- nothing: the scale is 1.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.adapters.model import Scaling, number
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.formats.adapters.keys import Half
    from overlay.formats.files import Files
    from overlay.formats.header import Header, TensorInfo

__all__ = ["EMBEDDED", "FileAlone", "embedded_config", "file_alone", "metadata_alpha", "says_its_scale"]

EMBEDDED = "lora_adapter_metadata"
_ALPHAS = ("alpha", "lora_alpha", "ss_network_alpha")
_RANKS = ("rank", "r", "lora_rank", "ss_network_dim")

_SCALARS = {"F64": "<d", "F32": "<f", "F16": "<e", "I64": "<q", "I32": "<i"}


@dataclass(frozen=True, slots=True)
class FileAlone:
    """What a file without config says.

    Attributes:
        alphas: Value of every ``<module>.alpha`` tensor, by the module's name in the file.
        alpha: One for all pairs, out of the metadata under ``key``.
        rank: As ``alpha``.
    """

    alphas: Mapping[str, float]
    alpha: float | None
    rank: int | None
    key: str

    @property
    def rule(self) -> str:
        """How targets and patterns are matched."""
        return "none: every pair of the file, no config"

    def scaling(self, module: str) -> Scaling:
        """Rank and alpha of one module of the file."""
        if module in self.alphas:
            return Scaling(None, self.alphas[module], rslora=False, source="alpha tensor")
        source = f"file metadata {self.key}" if self.alpha is not None else "no alpha given"
        return Scaling(self.rank, self.alpha, rslora=False, source=source)


def says_its_scale(header: Header) -> bool:
    """A file that needs no config beside it: it holds alphas, or metadata with one."""
    return any(key in header.metadata for key in (EMBEDDED, *_ALPHAS)) or any(
        name.endswith(".alpha") for name in header.tensors
    )


def embedded_config(text: str, where: str) -> dict[str, Any]:
    """The PEFT config in ``lora_adapter_metadata``, without the component's name in its keys.

    Raises:
        BrokenInput: Not a JSON object, or configs of several components.
    """
    document = parse_object(text.encode(), where)
    if "r" in document or "peft_type" in document:
        return document
    components = {key.partition(".")[0] for key in document}
    if len(components) != 1 or not all("." in key for key in document):
        raise BrokenInput(
            f"{where}: describes {some(sorted(components)) or 'nothing'}; expected the config of one component",
            code="adapter-spec-unknown",
            hint="save the LoRA of each component to a file of its own",
            where=where,
            components=sorted(components)[:10],
        )
    return {key.partition(".")[2]: value for key, value in document.items()}


def file_alone(files: Files, path: str, header: Header, halves: tuple[Half, ...]) -> FileAlone:
    """What the file itself says, its scalar alphas read.

    Raises:
        BrokenInput: An alpha or rank that is no number, that is there twice or for some modules only.
    """
    where = files.where(path)
    alphas = {half.module: _scalar(files, path, half.alpha) for half in halves if half.alpha is not None}
    if alphas:
        without = [half.module for half in halves if half.alpha is None]
        if without:
            raise BrokenInput(
                f"{where}: {len(alphas)} modules have an alpha tensor and {len(without)} have none "
                f"({some(without)}); expected all or none",
                code="adapter-alpha",
                hint="save the adapter again with an alpha for every module",
                where=where,
                modules=without[:10],
            )
        return FileAlone(alphas, None, None, "")
    alpha, alpha_key = metadata_alpha(header, where)
    rank, rank_key = _metadata_number(header, _RANKS, where)
    ranks = sorted({half.a.shape[0] for half in halves if half.a.shape})
    if rank is not None and ranks != [rank]:
        raise BrokenInput(
            f"{where}: the metadata's {rank_key} is {number(rank)}, the pairs have rank {some(map(str, ranks))}",
            code="adapter-rank",
            hint="metadata and tensors disagree; download the file again, or ask its author",
            where=where,
        )
    if alpha is not None and len(ranks) > 1:
        raise BrokenInput(
            f"{where}: the metadata's {alpha_key} is {number(alpha)} for pairs of rank {some(map(str, ranks))}; "
            f"expected one rank",
            code="adapter-rank",
            hint="one alpha for several ranks can mean two things; save the adapter with an alpha for every module",
            where=where,
        )
    return FileAlone({}, alpha, int(rank) if rank is not None else None, alpha_key)


def metadata_alpha(header: Header, where: str) -> tuple[float | None, str]:
    """The one alpha in a file's metadata and its key; (None, "") where there is none.

    Raises:
        BrokenInput: No positive number, or two different ones.
    """
    return _metadata_number(header, _ALPHAS, where)


def _metadata_number(header: Header, keys: tuple[str, ...], where: str) -> tuple[float | None, str]:
    found: dict[str, float] = {}
    for key in keys:
        if key not in header.metadata:
            continue
        text = header.metadata[key]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise _no_alpha(where, f"the metadata's {key}", text[:40])
        found[key] = value
    if len(set(found.values())) > 1:
        raise _no_alpha(where, f"the metadata's {' and '.join(found)}", ", ".join(map(number, found.values())))
    return next(((value, key) for key, value in found.items()), (None, ""))


def _scalar(files: Files, path: str, info: TensorInfo) -> float:
    where = files.where(path)
    if math.prod(info.shape) != 1 or info.dtype not in (*_SCALARS, "BF16"):
        raise BrokenInput(
            f"{where}: {info.name} is {info.dtype} {list(info.shape)}; expected one number",
            code="adapter-alpha",
            hint="save the adapter again",
            where=where,
            tensor=info.name,
        )
    data = files.read_range(path, files.header(path).offset(info.name), info.nbytes)
    # bfloat16 is the upper half of a float32.
    value = (
        struct.unpack("<f", b"\0\0" + data)[0] if info.dtype == "BF16" else struct.unpack(_SCALARS[info.dtype], data)[0]
    )
    if not 0 < value < math.inf:
        raise _no_alpha(where, info.name, str(value))
    return float(value)


def _no_alpha(where: str, what: str, found: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: {what} is {found}; expected one positive number",
        code="adapter-alpha",
        hint="save the adapter again with its alpha",
        where=where,
    )
