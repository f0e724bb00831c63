"""Reading an adapter against the base that it will be fused into. Every tensor must find its place."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.adapters.community import file_alone, metadata_alpha
from overlay.formats.adapters.find import find_adapter
from overlay.formats.adapters.keys import read_keys
from overlay.formats.adapters.match import FLOATS, VDN_RENAME, Base, close_names
from overlay.formats.adapters.model import MOST_NAMED, Adapter, Pair, number
from overlay.formats.adapters.openvdn import OpenVDNSpec
from overlay.formats.wording import counted, some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.formats.adapters.find import Description, Found
    from overlay.formats.adapters.keys import Half
    from overlay.formats.adapters.match import Landing
    from overlay.formats.adapters.model import Kind, Scaling
    from overlay.formats.files import Files
    from overlay.formats.header import Header, TensorInfo

__all__ = ["read_adapter"]

_MATRIX = 2
_LONGEST_NAME = 128


def read_adapter(
    files: Files,
    path: str,
    base: Mapping[str, TensorInfo],
    *,
    name: str | None = None,
    rename: Mapping[str, str] = VDN_RENAME,
) -> Adapter:
    """Read an adapter and find the base tensor of each of its pairs. Headers, JSON and scalar alphas only.

    Args:
        files: The repo or folder that holds the adapter.
        path: Folder or safetensors file in ``files``.
        base: Every tensor of the base by name.
        name: What to call the adapter; else what its spec, its folder or its file is called.
        rename: Name levels to replace where the base has no module of the name itself.

    Raises:
        NotHere: There is nothing at ``path``.
        BrokenInput: Anything in the adapter that cannot be applied to this base exactly as its description says.
    """
    found = find_adapter(files, path)
    where = files.where(found.weights)
    header = files.header(found.weights)
    halves = read_keys(header, where, base)
    targets = Base(base, rename)
    landings = _land(halves, targets, where)
    dtype = _dtype(halves, where)
    _check_shapes([(half, targets.check_target(landings[half.module].module, where)) for half in halves], where)

    if found.description is None:
        alone = file_alone(files, found.weights, header, halves)
        rule = alone.rule
        scalings = {landings[half.module].module: alone.scaling(half.module) for half in halves}
    else:
        described_in = files.where(found.spec or found.weights)
        by_target = {landing.module: landing for landing in landings.values()}
        rule = found.description.rule
        _check_one_alpha(found.description, halves, header, where)
        _check_complete(
            found.description.wanted(targets, targets.names(by_target.values()), described_in), by_target, where
        )
        scalings = found.description.scaling(by_target, targets, described_in)

    by_half = [(half, scalings[landings[half.module].module]) for half in halves]
    _check_ranks(by_half, where)
    pairs = [
        _pair(half, targets.modules[landings[half.module].module].name, scaling, where) for half, scaling in by_half
    ]
    return Adapter(
        name=_name(name, found, files),
        kind=_kind(found, halves),
        weights=found.weights,
        spec=found.spec,
        dtype=dtype,
        pairs=tuple(sorted(pairs, key=lambda pair: pair.target)),
        pattern_rule=rule,
        header=header,
    )


def _land(halves: tuple[Half, ...], base: Base, where: str) -> dict[str, Landing]:
    """Where each module of the file is in the base, by its name in the file."""
    landings: dict[str, Landing] = {}
    spelled: dict[str, Half] = {}
    lost: list[str] = []
    for half in halves:
        landing = base.find(half.module, where)
        if landing is None:
            lost.append(half.module)
            continue
        other = spelled.setdefault(landing.module, half)
        if other is not half:
            raise BrokenInput(
                f"{where}: {other.a.name} and {half.a.name} are both for {landing.module}; expected one pair a module",
                code="adapter-duplicate-pair",
                hint="remove one spelling; or, if these are two adapters, save each to a file of its own",
                where=where,
                module=landing.module,
                tensors=[other.a.name, half.a.name],
            )
        landings[half.module] = landing
    if lost:
        packed = base.packed(lost[0])
        because = f" (it has {packed}: quantised or scaled target refused)" if packed else ""
        raise BrokenInput(
            f"{where}: {len(lost)} of {len(halves)} LoRA pairs have no module in the base{because}: "
            f"{close_names(lost, base.modules)}",
            code="adapter-target-quantised" if packed else "adapter-unmatched",
            hint="fuse into the unquantised base" if packed else "is this the base that the adapter was trained on?",
            where=where,
            modules=lost[:MOST_NAMED],
            count=len(lost),
        )
    return landings


def _dtype(halves: tuple[Half, ...], where: str) -> str:
    by_dtype = {tensor.dtype: tensor.name for half in halves for tensor in (half.a, half.b)}
    for dtype, name in by_dtype.items():
        if dtype not in FLOATS:
            raise BrokenInput(
                f"{where}: {name} is {dtype}; expected one of {', '.join(FLOATS)}",
                code="adapter-dtype",
                hint="save the adapter in bf16, fp16 or fp32",
                where=where,
                tensor=name,
                dtype=dtype,
            )
    if len(by_dtype) > 1:
        raise BrokenInput(
            f"{where}: mixed dtypes: {some(f'{name} is {dtype}' for dtype, name in by_dtype.items())}; "
            f"expected one for all",
            code="adapter-dtype",
            hint="save the adapter in one dtype, the widest that it has",
            where=where,
            dtypes=sorted(by_dtype),
        )
    return next(iter(by_dtype))


def _check_shapes(targeted: Sequence[tuple[Half, TensorInfo]], where: str) -> None:
    """A is [rank, in], B is [out, rank] for a weight [out, in], and the rank is the same, and not 0."""
    wrong = [(half, weight) for half, weight in targeted if not _fits(half, weight)]
    if not wrong:
        return
    (half, weight), more = wrong[0], _more([half.module for half, _ in wrong])
    a, b = half.a.shape, half.b.shape
    rows, cols = weight.shape
    kind = "; LoRA of a convolution is not implemented" if max(len(a), len(b)) > _MATRIX else ""
    raise BrokenInput(
        f"{where}: {half.module}: {half.a.name} has shape {list(a)} and {half.b.name} {list(b)}; the base's "
        f"{weight.name} is {[rows, cols]}, so expected [rank, {cols}] and [{rows}, rank] with one rank above 0"
        f"{kind}{more}",
        code="adapter-shape",
        hint="is this the base that the adapter was trained on, with all its layers?",
        where=where,
        module=half.module,
        tensors=[half.a.name, half.b.name],
        target=weight.name,
        modules=[half.module for half, _ in wrong[:MOST_NAMED]],
        count=len(wrong),
    )


def _fits(half: Half, weight: TensorInfo) -> bool:
    rows, cols = weight.shape
    a, b = half.a.shape, half.b.shape
    return len(a) == len(b) == _MATRIX and a[0] == b[1] > 0 and (b[0], a[1]) == (rows, cols)


def _more(modules: Sequence[str]) -> str:
    """What follows a message about the first of some modules, where there are others."""
    return f"; so it is for {len(modules)} modules, also for {some(modules[1:])}" if len(modules) > 1 else ""


def _check_one_alpha(description: Description, halves: tuple[Half, ...], header: Header, where: str) -> None:
    """Where a config gives the scales, the file must not give others."""
    scalar = next((half.alpha.name for half in halves if half.alpha is not None), None)
    given = description.config.alpha if isinstance(description, OpenVDNSpec) else description.lora_alpha
    alpha, key = metadata_alpha(header, where)
    if scalar is None and alpha in (None, given):
        return
    found = f"tensor {scalar}" if scalar else f"metadata {key} of {number(alpha or 0)}"
    raise BrokenInput(
        f"{where}: has {found}, but its config gives the scale too (alpha {number(given)}); expected one of them",
        code="adapter-alpha",
        hint="does this config belong to this file? if not, move the file to a folder of its own",
        where=where,
    )


def _check_complete(wanted: set[str], landed: Mapping[str, Landing], where: str) -> None:
    missing, extra = sorted(wanted - landed.keys()), sorted(landed.keys() - wanted)
    if not missing and not extra:
        return
    verb = "is no target" if len(extra) == 1 else "are no targets"
    unexpected = f"{counted(len(extra), 'LoRA pair')} {verb} of its config: {some(extra)}"
    if missing:
        found = (
            f"{len(missing)} of {len(wanted)} targets of its config have no LoRA pair: {some(missing)}; "
            f"there are {len(landed)} pairs{f', and {unexpected}' if extra else ''}"
        )
        hint = "the file is incomplete, or is not the one that the config describes: download both again"
    else:
        found = f"{unexpected}; it has {len(wanted)} targets, and there are {len(landed)} pairs"
        hint = "the file is not the one that the config describes: download both again"
    raise BrokenInput(
        f"{where}: {found}",
        code="adapter-pairs-missing" if missing else "adapter-pairs-unexpected",
        hint=hint,
        where=where,
        modules=(missing or extra)[:MOST_NAMED],
        count=len(missing or extra),
        missing=missing[:MOST_NAMED],
        unexpected=extra[:MOST_NAMED],
        targets=len(wanted),
        pairs=len(landed),
    )


def _check_ranks(scaled: Sequence[tuple[Half, Scaling]], where: str) -> None:
    wrong = [(half, scaling) for half, scaling in scaled if scaling.rank not in (None, half.a.shape[0])]
    if not wrong:
        return
    half, scaling = wrong[0]
    rank = half.a.shape[0]
    modules = [half.module for half, _ in wrong]
    raise BrokenInput(
        f"{where}: {half.module}: the tensors have rank {rank}, the config says {scaling.rank} ({scaling.source})"
        f"{_more(modules)}",
        code="adapter-rank",
        hint="config and tensors do not belong together: download both again, or add the module to rank_pattern",
        where=where,
        module=half.module,
        found=rank,
        expected=scaling.rank,
        modules=modules[:MOST_NAMED],
        count=len(modules),
    )


def _pair(half: Half, target: str, scaling: Scaling, where: str) -> Pair:
    rank = half.a.shape[0]
    alpha, scale, origin = scaling.scale(rank)
    if not 0 < scale < math.inf:
        raise BrokenInput(
            f"{where}: {half.module}: scale {origin} is {scale} in float32; expected a positive number",
            code="adapter-alpha",
            hint="check the alpha in the config or the file",
            where=where,
            module=half.module,
        )
    return Pair(
        target=target,
        module=half.module,
        a=half.a,
        b=half.b,
        rank=rank,
        alpha=alpha,
        rslora=scaling.rslora,
        scale=scale,
        scale_origin=origin,
    )


def _kind(found: Found, halves: tuple[Half, ...]) -> Kind:
    if found.spec is not None:
        return "openvdn" if isinstance(found.description, OpenVDNSpec) else "peft"
    return "kohya" if any(half.kohya for half in halves) else "bare"


def _name(given: str | None, found: Found, files: Files) -> str:
    """The adapter's name, safe to be part of a path."""
    in_spec = found.description.config.name if isinstance(found.description, OpenVDNSpec) else None
    weights = PurePosixPath(found.weights)
    in_path = weights.stem if found.spec is None else weights.parent.name or PurePosixPath(files.name).name
    for name in filter(None, (given, in_spec, in_path)):
        if name.strip(". ") and name.isprintable() and not set(name) & set("/\\") and len(name) <= _LONGEST_NAME:
            continue
        raise BrokenInput(
            f"{files.where(found.weights)}: adapter name {name[:_LONGEST_NAME]!r} cannot be part of a path",
            code="adapter-name",
            hint="name the adapter in letters, digits, '-', '_' and '.'",
            where=files.where(found.weights),
            name=name[:_LONGEST_NAME],
        )
    return given or in_spec or in_path
