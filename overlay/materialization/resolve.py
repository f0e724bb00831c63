"""What a model name stands for, and whether it is here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import InvalidRegistry, NotHere
from overlay.materialization.request import DEFAULTS, Options, open_cache, resolved
from overlay.materialization.state import State, find_state, is_settled
from overlay.planning.rules import DEFAULT_RULE
from overlay.registry import load_registry
from overlay.registry.load import locked_model

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry import Resolution

__all__ = ["Resolved", "build_words", "location_at_hand", "present", "prewarm_words", "resolve"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a model name stands for, and whether it is here."""

    resolution: Resolution
    state: State
    replaced: tuple[str, ...]


def resolve(model: str, options: Options = DEFAULTS) -> Resolved:
    """What a model name stands for, and whether it is in the cache. No request, nothing written.

    Args:
        model: Registry key, a local folder or Hub cache path that maps to one, or an overlay folder.

    Raises:
        InvalidUsage: Unknown model. InvalidRegistry: The registry cannot be used.
    """
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    cache = open_cache(options, create=False)
    state = find_state(resolution, cache, options.rule, location_at_hand(resolution, options))
    return Resolved(resolution, state, tuple(registry.replaced.get(resolution.model, ())))


def present(
    model: str,
    options: Options = DEFAULTS,
    *,
    by_name: bool = False,
    wanted_by: tuple[str, ...] = (),
    in_force: bool = False,
) -> tuple[Resolved, Path]:
    """What the name of a model stands for that is here, and its directory.

    Args:
        in_force: It is for a consumer, who gets what a user rolled back to.
        by_name: It is for a server that looks it up, and so for one that needs the source as well.
        wanted_by: The command that wants it, with its flags but those of rule and server: where the model is here by
            another rule, that is most likely the one that is meant.

    Raises:
        NotHere: It is not here as the registry pins it, nor rolled back.
    """
    found = resolve(model, options)
    state = found.state
    if state.tree is not None and (state.is_in_force if in_force else state.name == "present"):
        return found, state.tree
    why = f": {state.why}" if state.why else ""
    words = build_words(model, found, options, by_name=by_name)
    if wanted_by and state.rule:
        words = (*wanted_by, "--rule", state.rule, *(options.server.flags if options.server else ()))
    raise NotHere(
        f"{model}: {state.name}{why}",
        code=f"model-{state.name}",
        hint=shlex.join(["overlay", *words]),
        model=model,
        location=str(state.location) if state.location else None,
    )


def build_words(model: str, found: Resolved, options: Options, *, by_name: bool = False) -> tuple[str, ...]:
    """The command that brings a model here, or that tells of one that cannot be built.

    What a server built at the model's location need not be built again, and what was rolled back is not built over.

    Args:
        model: As it was named: a folder means another source or overlay than the model's name, and its spelling counts.
        by_name: As of :func:`present`.
    """
    if found.state.rolled_back_from is not None:
        return ("rollback", model, "--undo", *_flags(options))
    location, is_script = found.state.location, found.resolution.entry.recipe.name == "python"
    is_folder = location is not None and location.is_dir() and not location.is_symlink()
    if is_folder and found.state.tree is None and not is_script:
        return ("adopt", model, *_floating(found.resolution), *_flags(options))
    return prewarm_words(model, found.resolution, options, by_name=by_name)


def prewarm_words(model: str, resolution: Resolution, options: Options, *, by_name: bool = False) -> tuple[str, ...]:
    """As :func:`build_words`, where nothing lies at the location."""
    if not resolution.entry.is_buildable:
        return ("check", resolution.model)
    staged = ["--stage-source"] if by_name else []
    allowed = ["--allow-script"] if resolution.script_is_found else []
    return ("prewarm", model, *staged, *allowed, *_floating(resolution), *_flags(options))


def _floating(resolution: Resolution) -> tuple[str, ...]:
    return ("--allow-floating",) if resolution.floats else ()


def _flags(options: Options) -> tuple[str, ...]:
    rule = [] if options.rule == DEFAULT_RULE else ["--rule", options.rule]
    return (*rule, *(options.server.flags if options.server else ()))


def location_at_hand(resolution: Resolution, options: Options) -> str | None:
    """The location by the overlay's own files, if they are on this host, else by what the lock found them to be.

    None where neither tells; then a fingerprint in the registry does.
    """
    entry = resolution.entry
    if entry.overlay is None:
        return None
    from overlay.fingerprint import DigestMemo
    from overlay.formats.manifest import read_manifest
    from overlay.formats.overlay_repo import METADATA_PATTERNS
    from overlay.hub import open_repo
    from overlay.planning.location import overlay_identity

    try:
        overlay = open_repo(
            entry.overlay,
            hub=options.hub,
            offline=True,
            memo=DigestMemo(None),
            allow_floating=True,
            only=METADATA_PATTERNS,
        )
        return overlay_identity(entry, overlay, read_manifest(overlay)).location_name
    except NotHere:
        return _locked_location(resolution) if entry.overlay_fingerprint is None else None


def _locked_location(resolution: Resolution) -> str | None:
    """The location that the lock in force has for the pins as they are; None where it speaks of others."""
    entry = resolution.entry
    # What a server was told by its variable enters the name, and no lock knows of it.
    if entry.server is not None or not is_settled(resolution):
        return None
    try:
        locked = locked_model(resolution.registry_path, entry.model)
    except InvalidRegistry:  # said where the lock itself counts; to look a model up must not fail for it
        return None
    return locked.location if locked and not locked.differences(entry) else None
