"""Which flags and variables of a server a registry may give: those that tune it, not those that say what it loads.

Servers have hundreds of flags, take ``_`` for ``-`` and abbreviations, and get new ones with each release. So flags are
told by the words of their names, whole or cut short, and no value may name a place. Variables are also read by whatever
else runs in the process: only those of the server, of NCCL and a few more are taken at all.
"""

from __future__ import annotations

import re

__all__ = ["is_flag", "why_not_flag", "why_not_value", "why_not_variable"]

_FLAG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBER = re.compile(r"-[0-9.]+")

_OF_WHAT_IS_LOADED = "model models revision repo adapter adapters lora modelscope format overlay"
_OF_WHAT_IS_RUN = """
    trust remote code script scripted class cls package plugin plugins loader extension middleware import hook hooks
    processor processors executor pickle insecure external override overrides custom kwargs template sys"""
_OF_PLACES = """
    config configs path paths dir directory folder workdir root file assets so lib library registry entry url uri
    endpoint server address addr ip port socket peers origins id target test dev"""
_FAR = frozenset(f"{_OF_WHAT_IS_LOADED} {_OF_WHAT_IS_RUN} {_OF_PLACES}".split())
_FAR_ALONE = ("host", "tokenizer")
"""Only as the whole name: ``--host`` is where it listens, ``--adaln-host-cache-gb`` is memory."""
_NEAR = frozenset({"mode", "load"})
"""Words that only look like the beginning of one of those."""

_PREFIXES = ("SGLANG_", "VLLM_", "NCCL_")
_VARIABLES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM"),
    *("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_MAX_AUTOTUNE"),
    "DIFFUSION_ATTENTION_BACKEND",  # of vLLM-Omni
)


def is_flag(word: str) -> bool:
    """Whether a word of a command line is the name of an option, not a value."""
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def why_not_flag(flag: str) -> str | None:
    """Why a registry may not give a flag, written without its value; None where it may."""
    if not _FLAG.fullmatch(flag):
        return "is no flag by its full name; expected -- and letters, digits, - and _"
    *words, last = re.split(r"[-_.]+", flag.lstrip("-").lower().rstrip("-_."))
    far = next((word for word in words if word in _FAR), None) or _begun(last, alone=not words)
    return None if far is None else _said(far)


def _begun(word: str, *, alone: bool) -> str | None:
    """What the last word of a flag is, or may be the beginning of: parsers take a flag that is cut short."""
    if word in _NEAR and not alone:
        return None
    far = (*sorted(_FAR), *(_FAR_ALONE if alone else ()))
    return next((one for one in far if one.startswith(word)), None)


def why_not_variable(name: str) -> str | None:
    """Why a registry may not give a variable; None where it may."""
    if name in _VARIABLES:
        return None
    if not name.startswith(_PREFIXES):
        return (
            f"is none of those that a registry gives ({', '.join(f'{one}…' for one in _PREFIXES)}, OMP_NUM_THREADS …)"
        )
    far = next((word for word in name.lower().split("_")[1:] if word in _FAR), None)
    return None if far is None else _said(far)


def why_not_value(value: str) -> str | None:
    """Why a registry may not give a value; None where it may."""
    if "/" in value or "\\" in value:
        return "names a place (with / or \\), and what a server reads from elsewhere is for whoever starts it"
    return None


def _said(word: str) -> str:
    return f"by its name ({word} …) may decide what the server loads, runs, reads or listens to"
