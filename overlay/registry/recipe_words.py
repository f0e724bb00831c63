"""A recipe as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["option_words", "recipe_text"]


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options as words; of a place (repo and path) its path in the repo, of several all, in order."""
    return [
        f"{name} {' + '.join(_place(item) for item in (value if isinstance(value, list | tuple) else [value]))}"
        for name, value in options.items()
    ]


def recipe_text(name: str, options: Mapping[str, Any]) -> str:
    """A recipe in a sentence: ``lora (base org/a/unet, adapters org/b + org/c/x.safetensors)``."""
    words = option_words(options)
    return f"{name} ({', '.join(words)})" if words else name


def _place(value: Any) -> str:
    return f"{value.get('repo')}/{value.get('path')}".rstrip("/") if isinstance(value, dict) else str(value)
