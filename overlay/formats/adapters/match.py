"""Where the modules that an adapter names are in the base."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.adapters.model import MOST_NAMED
from overlay.formats.wording import some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from overlay.formats.header import TensorInfo

__all__ = ["FLOATS", "VDN_RENAME", "Base", "Endings", "Landing", "close_names", "pattern_unmatched"]

_MOST_COMPARED = 5000
_LONGEST_NAME = 300

VDN_RENAME: Mapping[str, str] = {".attn.orig.": ".attn."}
"""Name levels that a wrapper of the trained model added, and what the base has in their place."""

FLOATS = ("BF16", "F16", "F32")

# What trainers and user interfaces put before the name of a denoiser's module.
_COMPONENTS = ("transformer.", "diffusion_model.", "model.diffusion_model.", "unet.")
_KOHYA = ("lora_unet_", "lora_transformer_")

# A tensor beside `weight` that scales, packs or factors it: the stored numbers are then not the weight.
_QUANTISED = re.compile(
    r"weight[_.].+|(scale|scales|input|output)_(weight|scale|input)|scales?|zeros|q(weight|zeros)|SCB|CB|comfy_quant|g_idx"
)


@dataclass(frozen=True, slots=True)
class Landing:
    """A module of the base, and its name in the model that the adapter was trained on."""

    module: str
    name: str


class Base:
    """The modules of a base: every ``<module>.weight``.

    Args:
        tensors: Every tensor of the base by name.
        rename: Wrapper levels (as in ``VDN_RENAME``) to take out of a name whose module the base does not have.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], rename: Mapping[str, str]) -> None:
        self.modules = {
            name.removesuffix(".weight"): info for name, info in tensors.items() if name.endswith(".weight")
        }
        self.rename = rename
        self._flat: dict[str, list[str]] = {}
        for module in self.modules:
            self._flat.setdefault(module.replace(".", "_"), []).append(module)
        self._sorted = sorted(tensors)

    def find(self, name: str, where: str) -> Landing | None:
        """The module that an adapter means by this name: itself, else without component prefix or wrapper level.

        Raises:
            BrokenInput: A kohya name, in which every dot is an underscore, could be several modules.
        """
        for prefix in ("", *_COMPONENTS):
            if name.startswith(prefix):
                plain = name.removeprefix(prefix)
                for candidate in (plain, self.unwrapped(plain)):
                    if candidate in self.modules:
                        return Landing(candidate, plain)
        for prefix in _KOHYA:
            flat = self._flat.get(name.removeprefix(prefix), []) if name.startswith(prefix) else []
            if len(flat) > 1:
                raise BrokenInput(
                    f"{where}: {name} could be {' or '.join(flat)}; a kohya name must stand for one module",
                    code="adapter-target-ambiguous",
                    hint="save the adapter with dotted names (PEFT's or diffusers' layout)",
                    where=where,
                    module=name,
                    candidates=flat,
                )
            if flat:
                return Landing(flat[0], flat[0])
        return None

    def unwrapped(self, name: str) -> str:
        """A name, or the end of one, without wrapper levels."""
        dotted = f".{name}"
        for level, plain in self.rename.items():
            dotted = dotted.replace(level, plain)
        return dotted[1:]

    def names(self, landings: Iterable[Landing]) -> dict[str, str]:
        """Every module of the base and its name in the adapter's model.

        A module that has no pair is taken to be wrapped where its like are: blocks that differ in numbers only.
        """
        wrapped = {
            (level, _family(landing.name.partition(level)[0]))
            for landing in landings
            if landing.name != landing.module
            for level in self.rename
            if level in landing.name
        }
        return {module: next(self._wrapped(module, wrapped), module) for module in self.modules}

    def _wrapped(self, module: str, wrapped: Collection[tuple[str, str]]) -> Iterator[str]:
        for level, plain in self.rename.items():
            head, found, tail = module.partition(plain)
            if found and (level, _family(head)) in wrapped:
                yield head + level + tail

    def check_target(self, module: str, where: str) -> TensorInfo:
        """The weight of a module, if a LoRA pair can be added to its numbers as they are stored.

        Raises:
            BrokenInput: Not a matrix, or quantised.
        """
        weight = self.modules[module]
        if found := self.quantised(module):
            raise BrokenInput(
                f"{where}: target {weight.name} of the base {found}: quantised or scaled target refused; "
                f"expected plain {', '.join(FLOATS)}",
                code="adapter-target-quantised",
                hint="fuse into the unquantised base, then quantise",
                where=where,
                tensor=weight.name,
                dtype=weight.dtype,
                beside=list(self._quantisation(module)),
            )
        if len(weight.shape) != 2:  # noqa: PLR2004  # a matrix
            raise BrokenInput(
                f"{where}: target {weight.name} of the base has shape {list(weight.shape)}; "
                f"expected a matrix [out, in]",
                code="adapter-target-shape",
                hint="LoRA of convolutions and norms is not implemented; fuse it with the program that trained it",
                where=where,
                tensor=weight.name,
                shape=list(weight.shape),
            )
        return weight

    def quantised(self, module: str) -> str | None:
        """What shows that a module's stored numbers are not its weight; None where they are."""
        weight = self.modules[module]
        beside = next(self._quantisation(module), None)
        if beside is not None:
            return f"has {beside} beside it"
        return None if weight.dtype in FLOATS else f"is {weight.dtype}"

    def packed(self, name: str) -> str | None:
        """The packed tensor that the base has in place of ``<name>.weight``, if any."""
        return next((found for module in (name, self.unwrapped(name)) for found in self._quantisation(module)), None)

    def _quantisation(self, module: str) -> Iterator[str]:
        start = f"{module}."
        for index in range(bisect_left(self._sorted, start), len(self._sorted)):
            name = self._sorted[index]
            if not name.startswith(start):
                return
            if _QUANTISED.fullmatch(name.removeprefix(start)):
                yield name


class Endings:
    """Finds, of many ends of names, those that a name has, whole or from a dot on, in a time for one, not for each.

    Args:
        ends: Such as ``attn.to_q``, which ``blocks.0.attn.to_q`` ends in, and ``cross_attn.to_q`` does not.
    """

    def __init__(self, ends: Iterable[str]) -> None:
        self._ends = frozenset(ends)
        self._lengths = sorted({len(end) for end in self._ends})

    def of(self, name: str) -> Iterator[str]:
        """The ends of this name, the shortest first."""
        for length in self._lengths:
            if length < len(name):
                if name[-length - 1] == "." and (end := name[-length:]) in self._ends:
                    yield end
            elif length > len(name):
                return
            elif name in self._ends:
                yield name


def close_names(wanted: Iterable[str], available: Collection[str], holder: str = "the base", limit: int = 3) -> str:
    """Some wanted names with the nearest available ones, and some available ones where none is near."""
    lines = []
    there = sorted(available)
    # Looking for the like of a name takes time for each that there is, and a hostile file has many.
    compared = there[:_MOST_COMPARED]
    for name in list(wanted)[:limit]:
        near = difflib.get_close_matches(name[:_LONGEST_NAME], compared, n=2, cutoff=0.6)
        lines.append(f"{name} (near: {', '.join(near)})" if near else name)
    return f"wanted {'; '.join(lines)}; {holder} has {', '.join(there[:limit])}{', …' if len(there) > limit else ''}"


def pattern_unmatched(where: str, field: str, keys: Sequence[str], modules: Collection[str], hint: str) -> BrokenInput:
    """The error for entries of ``rank_pattern`` or ``alpha_pattern`` (``field``) that match none of the modules."""
    others = f" ({len(keys)} entries match nothing, also {some(keys[1:])})" if len(keys) > 1 else ""
    return BrokenInput(
        f"{where}: {field} names {keys[0]!r}, which matches no LoRA pair here{others}: "
        f"{close_names(keys[:1], modules, 'the adapter')}",
        code="adapter-pattern-unmatched",
        hint=hint,
        where=where,
        field=field,
        key=keys[0],
        keys=list(keys[:MOST_NAMED]),
        count=len(keys),
    )


def _family(head: str) -> str:
    return re.sub(r"\d+", "*", head)
