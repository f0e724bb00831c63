"""PEFT's adapter config: flat, with regular expressions for per-module ranks and alphas.

Every field of PEFT 0.21 is known here: read, without effect on the weights that are saved, or refused by name unless it
is at its no-effect default. Matching follows PEFT's ``get_pattern_key`` and ``check_target_module_exists``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from overlay.errors import BrokenInput
from overlay.formats.adapters.match import Endings, close_names, pattern_unmatched
from overlay.formats.adapters.model import Scaling
from overlay.formats.adapters.openvdn import Alpha, Rank  # noqa: TC001  # pydantic reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.formats.adapters.match import Base, Landing

__all__ = ["PeftConfig"]

_ALL_LINEAR = "all-linear"

# Initialisations that leave the base's weights alone; the others (PiSSA, OLoRA, LoftQ, CorDA, …) may have changed them.
_HARMLESS_INITS = (True, False, None, "gaussian", "orthogonal")

_MOST_MATCHES = 2 * 10**7
"""Pattern entries times pairs: each is tried on each."""

_NO_EFFECT: tuple[Any, ...] = (None, False, [], {})

_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules beside the LoRA pairs",
    "lora_bias": "a bias of B",
    "fan_in_fan_out": "transposed weights",
    "layer_replication": "replicated layers",
    "target_parameters": "LoRA of parameters",
    "trainable_token_indices": "trained token embeddings",
    "megatron_config": "Megatron layers",
    "alora_invocation_tokens": "activated LoRA, which cannot be fused",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow routing, which cannot be fused",
    "kasa_config": "KaSA",
    "ensure_weight_tying": "tied adapters",
}


class PeftConfig(BaseModel):
    """A LoRA config as PEFT saves it. Fields that this reader does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Read.
    peft_type: StrictStr = "LORA"
    r: Rank
    lora_alpha: Alpha
    use_rslora: StrictBool = False
    target_modules: list[StrictStr] | StrictStr
    exclude_modules: list[StrictStr] | StrictStr | None = None
    layers_to_transform: Annotated[list[StrictInt], Field(max_length=2000)] | StrictInt | None = None
    layers_pattern: Annotated[list[StrictStr], Field(max_length=20)] | StrictStr | None = None
    rank_pattern: dict[StrictStr, Rank] | None = None
    alpha_pattern: dict[StrictStr, Alpha] | None = None
    # Where the adapter comes from, and how it was trained: the saved pairs are what they are.
    task_type: Any = None
    auto_mapping: Any = None
    base_model_name_or_path: Any = None
    revision: Any = None
    inference_mode: Any = None
    peft_version: Any = None
    lora_dropout: Any = None
    megatron_core: Any = None
    loftq_config: Any = None
    eva_config: Any = None
    corda_config: Any = None
    lora_ga_config: Any = None
    qalora_group_size: Any = None
    runtime_config: Any = None
    # Refused unless without effect.
    init_lora_weights: Any = True
    bias: Any = "none"
    use_dora: Any = None
    modules_to_save: Any = None
    lora_bias: Any = None
    fan_in_fan_out: Any = None
    layer_replication: Any = None
    target_parameters: Any = None
    trainable_token_indices: Any = None
    megatron_config: Any = None
    alora_invocation_tokens: Any = None
    use_qalora: Any = None
    use_bdlora: Any = None
    velora_config: Any = None
    monteclora_config: Any = None
    arrow_config: Any = None
    kasa_config: Any = None
    ensure_weight_tying: Any = None

    @property
    def rule(self) -> str:
        """How targets and patterns are matched."""
        return "peft: patterns are (.*\\.)?(key)$ against the module name, first match in file order"

    def check(self, where: str) -> None:
        """Refuse what this reader does not implement.

        Raises:
            BrokenInput: A method or field that changes the result, or a pattern that may not be run.
        """
        if self.peft_type != "LORA":
            raise _unsupported(where, "peft_type", self.peft_type, "another method than LoRA")
        if self.bias != "none":
            raise _unsupported(where, "bias", self.bias, "trained biases")
        if self.init_lora_weights not in _HARMLESS_INITS:
            what = "an initialisation that may have changed the base's weights"
            raise _unsupported(where, "init_lora_weights", self.init_lora_weights, what)
        for field, what in _REFUSED.items():
            if getattr(self, field) not in _NO_EFFECT:
                raise _unsupported(where, field, getattr(self, field), what)
        if self.layers_pattern and self.layers_to_transform is None:
            raise _contradiction(where, "layers_pattern is set, layers_to_transform is not")
        if isinstance(self.target_modules, str) and self.layers_to_transform is not None:
            raise _contradiction(where, "layers_to_transform is set, but target_modules is no list")
        self._check_patterns(where)

    def _check_patterns(self, where: str) -> None:
        for field in ("target_modules", "exclude_modules"):
            if isinstance(pattern := getattr(self, field), str):
                _check_pattern(pattern, field, where)
        for field in ("rank_pattern", "alpha_pattern"):
            for pattern in getattr(self, field) or ():
                _check_pattern(pattern, field, where)
        for pattern in _listed(self.layers_pattern):
            _check_pattern(pattern, "layers_pattern", where)

    def wanted(self, base: Base, names: Mapping[str, str], where: str) -> set[str]:
        """Modules of the base that ``target_modules`` stands for.

        As in PEFT an entry may match nothing, as long as not all do.

        Args:
            base: For the shape of its weights.
            names: Every module of the base, and its name in the adapter's model.
            where: The document, for messages.

        Raises:
            BrokenInput: Nothing matches.
        """
        ends, excluded = self._endings()
        found = {
            module
            for module, name in names.items()
            if self._targets(name, len(base.modules[module].shape), ends, excluded)
        }
        if not found:
            targets = self.target_modules if isinstance(self.target_modules, list) else [self.target_modules]
            raise BrokenInput(
                f"{where}: target_modules match no module of the base: {close_names(targets, names)}",
                code="adapter-target-unmatched",
                hint="is this the base that the adapter was trained on?",
                where=where,
                targets=targets[:10],
            )
        return found

    def scaling(self, landings: Mapping[str, Landing], base: Base, where: str) -> dict[str, Scaling]:  # noqa: ARG002  # as OpenVDNSpec's
        """Rank and alpha of every module that has a pair.

        Raises:
            BrokenInput: A pattern that matches none of them: PEFT would ignore it, and scale wrongly without a word.
        """
        ranks, alphas = self.rank_pattern or {}, self.alpha_pattern or {}
        names = [landing.name for landing in landings.values()]
        for field, patterns in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
            if len(patterns) * len(names) > _MOST_MATCHES:
                raise BrokenInput(
                    f"{where}: {field} has {len(patterns)} entries for {len(names)} LoRA pairs; expected fewer: "
                    f"each is tried on each",
                    code="adapter-spec-invalid",
                    hint="no adapter that is used has as many; is this the config of these weights?",
                    where=where,
                    field=field,
                )
            unmatched = [key for key in patterns if not any(_matches(key, name) for name in names)]
            if unmatched:
                hint = "keys of a PEFT pattern are regular expressions for the end of the module name"
                raise pattern_unmatched(where, field, unmatched, names, hint)
        scalings = {}
        for module, landing in landings.items():
            by_rank, by_alpha = _first(ranks, landing.name), _first(alphas, landing.name)
            patterns_used = [
                name for name, key in (("alpha_pattern", by_alpha), ("rank_pattern", by_rank)) if key is not None
            ]
            scalings[module] = Scaling(
                rank=self.r if by_rank is None else ranks[by_rank],
                alpha=self.lora_alpha if by_alpha is None else alphas[by_alpha],
                rslora=self.use_rslora,
                source=", ".join(patterns_used) or "config",
            )
        return scalings

    def _endings(self) -> tuple[Endings, Endings]:
        """What targets and excluded modules end in, where they are lists."""
        fields = self.target_modules, self.exclude_modules
        targets, excluded = (Endings(field if isinstance(field, list) else []) for field in fields)
        return targets, excluded

    def _targets(self, name: str, num_dims: int, ends: Endings, excluded: Endings) -> bool:
        if self._excludes(name, excluded):
            return False
        if isinstance(self.target_modules, str):
            if self.target_modules.lower() == _ALL_LINEAR:
                return num_dims == 2  # noqa: PLR2004  # a linear layer's weight
            return re.fullmatch(self.target_modules, name) is not None
        found = list(ends.of(name))
        return name in found or (bool(found) and self._in_layers(name))

    def _excludes(self, name: str, excluded: Endings) -> bool:
        if isinstance(self.exclude_modules, str) and self.exclude_modules:
            return re.fullmatch(self.exclude_modules, name) is not None
        return any(excluded.of(name))

    def _in_layers(self, name: str) -> bool:
        layers = self.layers_to_transform
        if layers is None or layers == []:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}" for pattern in _listed(self.layers_pattern)] or [r".*?\.[^.]*"]
        found = (re.match(rf"{pattern}\.(?P<idx>\d+)\.", name) for pattern in patterns)
        index = next((int(match["idx"]) for match in found if match and match["idx"]), None)
        return index in (layers if isinstance(layers, list) else [layers])


def _first(patterns: Mapping[str, Any], name: str) -> str | None:
    return next((key for key in patterns if _matches(key, name)), None)


def _matches(key: str, name: str) -> bool:
    return _compiled(key).match(name) is not None


@lru_cache(maxsize=4096)
def _compiled(key: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({key})$")


def _listed(value: list[str] | str | None) -> list[str]:
    if isinstance(value, list):
        return value
    return [value] if value else []


def _check_pattern(pattern: str, field: str, where: str) -> None:
    """Refuse an invalid expression, and one that repeats a group: it can take longer than the universe on one name."""
    try:
        re.compile(rf"(.*\.)?({pattern})$(?P<idx>)")
        problem = "repeats a group" if re.search(r"\)[*+{]", pattern) else None
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"cannot be used as a regular expression: {error}"
    if problem:
        raise BrokenInput(
            f"{where}: {field} has {pattern[:200]!r}, which {problem}",
            code="adapter-pattern-invalid",
            hint="write the module names out",
            where=where,
            field=field,
            key=pattern[:200],
        )


def _contradiction(where: str, what: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: {what}, which PEFT does not allow",
        code="adapter-spec-invalid",
        hint="save the adapter again with PEFT, or correct the field",
        where=where,
    )


def _unsupported(where: str, field: str, value: Any, what: str) -> BrokenInput:
    shown = repr(value)
    return BrokenInput(
        f"{where}: {field} is {shown[:200]}: {what}; this reader implements plain LoRA only",
        code="adapter-feature",
        hint="merge this adapter with PEFT, or save it without",
        where=where,
        field=field,
    )
