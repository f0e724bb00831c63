"""A recipe, and how servers are started for it, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.registry.entries import Launch

__all__ = ["option_words", "recipe_text", "serve_text"]


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


def serve_text(serve: Mapping[str, Launch]) -> str:
    """Launch data in a sentence: ``sglang (--attention-backend fa, OMP_NUM_THREADS=8, 9 grid points)``."""
    return ", ".join(f"{name} ({', '.join(_launch_words(launch)) or 'nothing'})" for name, launch in serve.items())


def _launch_words(launch: Launch) -> list[str]:
    words = [" ".join(launch.flags)] if launch.flags else []
    words += [f"{name}={value}" for name, value in launch.env.items()]
    words += [f"{name} {value}" for name, value in launch.request.items()]
    return [*words, f"{launch.grid_points} grid points"] if launch.grid_points else words


def _place(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "layout" in value:
        return f"{value['layout']} in {value.get('folder')} beside {_place(value.get('siblings'))}"
    place = f"{value.get('repo')}/{value.get('path')}".rstrip("/")
    moved = f" to {value['to'] or '/'}" if value.get("to", value.get("path")) != value.get("path") else ""
    return f"{place}{moved}{' the same as ' + _place(value['same_as']) if 'same_as' in value else ''}"
