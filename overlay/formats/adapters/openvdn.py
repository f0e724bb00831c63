"""OpenVDN's adapter spec: ``{"type": "lora", "version": 1, "config": {...}}``, ranks and alphas by full module name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from overlay.errors import BrokenInput
from overlay.formats.adapters.match import Endings, close_names, pattern_unmatched
from overlay.formats.adapters.model import MOST_NAMED, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.formats.adapters.match import Base, Landing

__all__ = ["Alpha", "OpenVDNSpec", "Rank"]

_MOST_WILDCARDS = 200

Rank = Annotated[int, Field(strict=True, gt=0, le=2**20)]
Alpha = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


def _check_wildcards(targets: list[str]) -> list[str]:
    """Each wildcard is tried on each module, and two in one level in as many ways as it is long."""
    wild = [target for target in targets if "*" in target]
    if len(wild) > _MOST_WILDCARDS:
        raise ValueError(f"{len(wild)} targets have a *; expected at most {_MOST_WILDCARDS}")
    for target in wild:
        if any(level.count("*") > 1 for level in target.split(".")):
            raise ValueError(f"{target[:200]!r} has more than one * between two dots")
    return targets


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: Rank
    alpha: Alpha
    targets: Annotated[list[StrictStr], Field(min_length=1), AfterValidator(_check_wildcards)]
    rank_pattern: dict[StrictStr, Rank] = {}
    alpha_pattern: dict[StrictStr, Alpha] = {}
    exact_targets: StrictBool = False
    name: StrictStr | None = None
    family: StrictStr | None = None


class OpenVDNSpec(BaseModel):
    """The document. Unknown keys are refused: one that this reader does not know may change the result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["lora"]
    version: Annotated[StrictInt, Field(ge=1, le=1)]
    config: _Config

    @property
    def rule(self) -> str:
        """How targets and patterns are matched."""
        targets = "full module names" if self.config.exact_targets else "ends of module names, * for one level"
        return f"openvdn: targets are {targets}; patterns are full module names"

    def wanted(self, base: Base, names: Mapping[str, str], where: str) -> set[str]:
        """Modules of the base that the targets stand for.

        Args:
            base: To find full names in.
            names: Every module of the base, and its name in the adapter's model.
            where: The document, for messages.

        Raises:
            BrokenInput: A target that matches no module.
        """
        if self.config.exact_targets:
            landings = {target: base.find(target, where) for target in self.config.targets}
            hits = {target: {landing.module} for target, landing in landings.items() if landing}
        else:
            hits = _suffix_hits(self.config.targets, base, names)
        missing = [target for target in self.config.targets if target not in hits]
        if missing:
            raise BrokenInput(
                f"{where}: {len(missing)} of {len(self.config.targets)} targets match no module of the base: "
                f"{close_names(missing, names)}",
                code="adapter-target-unmatched",
                hint="is this the base that the adapter was trained on?",
                where=where,
                targets=missing[:MOST_NAMED],
                count=len(missing),
            )
        return set().union(*hits.values())

    def scaling(self, landings: Mapping[str, Landing], base: Base, where: str) -> dict[str, Scaling]:
        """Rank and alpha of every module that has a pair; pattern entries are looked up under both of its names.

        Raises:
            BrokenInput: A pattern entry that names no module with a pair, or two for one module that differ.
        """
        ranks = _by_module(self.config.rank_pattern, "rank_pattern", landings, base, where)
        alphas = _by_module(self.config.alpha_pattern, "alpha_pattern", landings, base, where)
        scalings = {}
        for module in landings:
            patterns = [name for name, of in (("alpha_pattern", alphas), ("rank_pattern", ranks)) if module in of]
            source = ", ".join(patterns) or "config"
            rank = int(ranks.get(module, self.config.rank))
            scalings[module] = Scaling(rank, alphas.get(module, self.config.alpha), rslora=False, source=source)
        return scalings


def _suffix_hits(targets: Iterable[str], base: Base, names: Mapping[str, str]) -> dict[str, set[str]]:
    """Modules whose name ends in a target: the name in the adapter's model, or the base's without wrapper levels."""
    wrapped = any(name != module for module, name in names.items())
    ends = {target: target if wrapped else base.unwrapped(target) for target in targets}
    plain: dict[str, list[str]] = {}
    for target, end in ends.items():
        plain.setdefault(end, []).append(target)
    globs = {target: _suffix(end) for target, end in ends.items() if "*" in end}
    endings, hits = Endings(plain), dict[str, set[str]]()
    for module, name in names.items():
        for spelled in {name, module}:
            found = [target for end in endings.of(spelled) for target in plain[end]]
            found += [target for target, pattern in globs.items() if pattern.fullmatch(spelled)]
            for target in found:
                hits.setdefault(target, set()).add(module)
    return hits


def _suffix(target: str) -> re.Pattern[str]:
    level = r"[^.]+"
    return re.compile(rf"(?:.*\.)?{level.join(re.escape(part) for part in target.split('*'))}")


def _by_module(
    pattern: Mapping[str, float], field: str, landings: Mapping[str, Landing], base: Base, where: str
) -> dict[str, float]:
    values: dict[str, float] = {}
    unmatched: list[str] = []
    for key, value in pattern.items():
        landing = base.find(key, where)
        if landing is None or landing.module not in landings:
            unmatched.append(key)
        elif values.setdefault(landing.module, value) != value:
            raise BrokenInput(
                f"{where}: {field} names {landing.module} twice, with {values[landing.module]} and {value}",
                code="adapter-pattern-conflict",
                hint="keep one of the two entries",
                where=where,
                field=field,
                key=key,
            )
    if unmatched:
        hint = "keys of an OpenVDN pattern are full module names; an entry that applies nowhere is a mistake"
        raise pattern_unmatched(where, field, unmatched, landings, hint)
    return values
