"""The tensor names of an adapter file: which are LoRA pairs, and what the others are.

Read are ``<module>.lora_A[.<adapter>].weight`` with ``lora_B`` (PEFT, OpenVDN, diffusers), and
``<module>.lora_down.weight`` with ``lora_up`` and ``<module>.alpha`` (kohya), with or without PEFT's
``base_model.model.`` in front. Every other name is an error: a skipped tensor changes the result without a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.wording import some

if TYPE_CHECKING:
    from collections.abc import Container

    from overlay.formats.header import Header, TensorInfo

__all__ = ["Half", "read_keys"]

_PEFT_PREFIX = "base_model.model."

# The adapter's own name may be anything without a dot, "lora_A" included, so the module ends as early as it can.
_KEY = re.compile(r"(?P<module>.+?)\.(?:lora_(?P<half>A|B|down|up)(?:\.(?P<infix>[^.]+))?\.weight|(?P<alpha>alpha))")

_HALF = {"A": "A", "down": "A", "B": "B", "up": "B"}
_NAMES = {"A": "lora_A (lora_down)", "B": "lora_B (lora_up)"}

# What other methods and other parts of PEFT call their tensors.
_KNOWN = tuple(
    (re.compile(pattern), what)
    for pattern, what in (
        (r"lora_magnitude_vector|dora_scale|\.magnitude\b", "a DoRA magnitude"),
        (r"lora_embedding_[AB]", "a LoRA pair of an embedding"),
        (r"\.lora_mid\b|\.lora_t[12]\b", "a convolution's LoRA in Tucker form"),
        (r"\.hada_", "a LoHa factor"),
        (r"\.lokr_", "a LoKr factor"),
        (r"\.oft_|\.boft_", "an OFT factor"),
        (r"\.ia3_", "an IA3 vector"),
        (r"vera_lambda|\.vera_", "a VeRA factor"),
        (r"\.lora_E\b|\.ranknum\b", "an AdaLoRA factor"),
        (r"\.lora_diag\b", "a KaSA diagonal"),
        (r"\.lora_[AB](\.[^.]+)?\.bias$|\.lora_(up|down)\.bias$", "a LoRA bias"),
        (r"\.diff(_b)?$|\.set_weight$", "a full weight difference"),
        (r"\.w_norm$|\.b_norm$", "a norm difference"),
    )
)


@dataclass(frozen=True, slots=True)
class Half:
    """The tensors of one module as the file names them.

    Attributes:
        module: Without PEFT's prefix and without what names the half.
        kohya: Spelled ``lora_down`` and ``lora_up``.
        alpha: The scalar tensor ``<module>.alpha``, if any.
    """

    module: str
    a: TensorInfo
    b: TensorInfo
    alpha: TensorInfo | None
    kohya: bool


def read_keys(header: Header, where: str, base: Container[str]) -> tuple[Half, ...]:
    """The LoRA pairs of a file, in file order.

    Args:
        header: Of the file.
        where: The file, for messages.
        base: Names of the base's tensors, by which a whole weight is known.

    Raises:
        BrokenInput: A tensor is no part of a LoRA pair, a half is missing, a pair is spelled twice, or the file holds
            several adapters.
    """
    found: dict[str, dict[str, list[TensorInfo]]] = {}
    infixes: dict[str | None, str] = {}
    strangers: list[str] = []
    for name, tensor in header.tensors.items():
        match = _KEY.fullmatch(name.removeprefix(_PEFT_PREFIX))
        if match is None:
            strangers.append(name)
            continue
        part = "alpha" if match["alpha"] else _HALF[match["half"]]
        found.setdefault(match["module"], {}).setdefault(part, []).append(tensor)
        if part != "alpha":
            infixes.setdefault(match["infix"], name)
    if strangers:
        raise _stranger(strangers, where, base)
    if not found:
        raise BrokenInput(
            f"{where}: holds no tensors; expected LoRA pairs",
            code="adapter-empty",
            hint="download the adapter again, or name the right file",
            where=where,
        )
    halves = tuple(_pair(module, parts, where) for module, parts in found.items())
    if len(infixes) > 1:
        raise BrokenInput(
            f"{where}: holds several adapters: {some(repr(infix or '') for infix in infixes)}, as in "
            f"{some(infixes.values())}",
            code="adapter-several",
            hint="save each adapter to a file of its own",
            where=where,
            tensors=list(infixes.values())[:10],
        )
    return halves


def _pair(module: str, parts: dict[str, list[TensorInfo]], where: str) -> Half:
    for part, tensors in parts.items():
        if len(tensors) > 1:
            raise BrokenInput(
                f"{where}: {module}: {part} is there under {len(tensors)} names: {some(t.name for t in tensors)}; "
                f"expected one",
                code="adapter-duplicate-pair",
                hint="remove one spelling; or, if these are two adapters, save each to a file of its own",
                where=where,
                module=module,
                tensors=[t.name for t in tensors],
            )
    for part, name in _NAMES.items():
        if part not in parts:
            there = some(t.name for tensors in parts.values() for t in tensors)
            raise BrokenInput(
                f"{where}: {module}: {name} is missing; there is only {there}",
                code="adapter-half-pair",
                hint="the file was not saved whole: download it again, or save the adapter again",
                where=where,
                module=module,
                missing=part,
            )
    a, b = parts["A"][0], parts["B"][0]
    kohya = ".lora_down." in a.name
    if kohya != (".lora_up." in b.name):
        raise BrokenInput(
            f"{where}: {module}: the halves {a.name} and {b.name} are spelled in different ways",
            code="adapter-half-pair",
            hint="save the adapter again; each pair is lora_A with lora_B, or lora_down with lora_up",
            where=where,
            module=module,
            tensors=[a.name, b.name],
        )
    return Half(module, a, b, parts["alpha"][0] if "alpha" in parts else None, kohya)


def _stranger(names: list[str], where: str, base: Container[str]) -> BrokenInput:
    name = names[0]
    what = next((what for pattern, what in _KNOWN if pattern.search(name)), None)
    plain = name.removeprefix(_PEFT_PREFIX)
    if what is None and (plain in base or plain.split(".", 1)[-1] in base or name.endswith((".weight", ".bias"))):
        what = "a whole weight, as modules_to_save keeps them (or a layer that this reader does not know)"
    data = {"where": where, "tensor": name, "tensors": names[:10], "count": len(names)}
    others = f" (and {len(names) - 1} more tensors are no part of a LoRA pair)" if len(names) > 1 else ""
    if what is None:
        return BrokenInput(
            f"{where}: {name} is no part of a LoRA pair{others}; expected lora_A and lora_B, or lora_down, lora_up "
            f"and alpha",
            code="adapter-key-unknown",
            hint="save the adapter in PEFT's or kohya's layout",
            **data,
        )
    return BrokenInput(
        f"{where}: {name} is {what}{others}; only plain LoRA pairs of linear layers can be fused",
        code="adapter-feature",
        hint="fuse this adapter with the program that trained it, or save it as plain LoRA",
        **data,
    )
