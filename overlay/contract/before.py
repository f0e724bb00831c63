"""What the registry and its lock said before the change that is checked: at a git revision, or in another file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.contract.git import commit_of, file_at
from overlay.errors import InvalidRegistry, NotHere, OverlayError
from overlay.formats.local import read_small_file
from overlay.registry import Registry, load_registry, resolve
from overlay.registry.load import is_packaged, packaged_registry
from overlay.registry.lock import lock_path, parse_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.registry import Entry, Resolution
    from overlay.registry.lock import Lock, LockedModel

__all__ = ["Before", "before_at", "before_in", "changed_models", "fallen_back"]


@dataclass(frozen=True, slots=True)
class Before:
    """What was in force before.

    Attributes:
        name: What it is compared with, for people: a revision, or a file.
        entries: By model; empty where there was no registry, or none that can be used.
        own: The models that the file itself spoke of.
        locked: What the lock said, by model.
        notes: What the user should know, one sentence each.
    """

    name: str
    entries: Mapping[str, Entry] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    locked: Mapping[str, LockedModel] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def model(self, model: str) -> tuple[Resolution, LockedModel | None] | None:
        """What a model was, and what the lock said of it; None where it is new."""
        if model not in self.entries:
            return None
        return resolve(model, Registry(self.name, self.entries, {})), self.locked.get(model)


def before_at(registry: Registry, revision: str) -> Before:
    """The registry file in force and its lock as of a git revision.

    Raises:
        InvalidUsage: No git, no repository, no such revision; or a link led out of the repository then.
        TryAgain: git cannot read them now.
    """
    path = Path(registry.path).absolute()
    path = path.parent.resolve() / path.name  # the file may be a link, and what it led to then is git's to say
    commit = commit_of(path.parent, revision)
    name = f"{revision} ({commit[:12]})" if revision != commit else commit[:12]
    content = file_at(path, commit)
    if content is None:
        return Before(name, notes=(f"there was no {path.name} at {name}: every entry is new",))
    return _before(registry, name, content, file_at(lock_path(path), commit))


def before_in(registry: Registry, file: Path) -> Before:
    """Another registry file in the place of the one in force, with the lock beside it.

    Raises:
        NotHere: There is no such file.
        InvalidRegistry: It cannot be read.
    """
    try:
        content = read_small_file(file)
    except OverlayError as error:
        hint = "name a registry file to compare with: --against FILE"
        if isinstance(error, NotHere):
            raise NotHere(error.message, code=error.code, hint=hint, where=str(file)) from error
        raise InvalidRegistry(error.message, code="registry-unreadable", hint=hint, where=str(file)) from error
    lock = lock_path(file)
    try:
        locked = read_small_file(lock)
    except NotHere:
        locked = None
    except OverlayError as error:
        raise InvalidRegistry(error.message, code="lock-unreadable", hint=f"ls -l {lock}", where=str(lock)) from error
    return _before(registry, str(file), content, locked)


def changed_models(before: Before, entries: Mapping[str, Entry], locked: Mapping[str, LockedModel]) -> tuple[str, ...]:
    """Models of which the entry or what the lock says of it is not what it was, in the order of ``entries``."""
    return tuple(
        model
        for model, entry in entries.items()
        if entry != before.entries.get(model) or locked.get(model) != before.locked.get(model)
    )


def fallen_back(before: Before, registry: Registry) -> tuple[str, ...]:
    """Models whose entry left the file, so that the one which ships with this program is in force now."""
    own = registry.own
    return tuple(model for model in before.own if model in registry.entries and model not in own)


def _before(registry: Registry, name: str, content: bytes, lock: bytes | None) -> Before:
    # What was unusable before must not keep anybody from repairing it: then everything counts as changed.
    try:
        entries, own = _entries(registry, content, name)
    except InvalidRegistry as error:
        return Before(name, notes=(f"the registry was unusable before, so every entry is checked: {error.message}",))
    parsed, notes = _lock(lock, name)
    return Before(name, entries, own, parsed.models if parsed else {}, notes)


def _lock(data: bytes | None, name: str) -> tuple[Lock | None, tuple[str, ...]]:
    if data is None:
        return None, ()
    try:
        return parse_lock(data, name), ()
    except InvalidRegistry as error:
        return None, (f"the lock was unusable before: {error.message}",)


def _entries(registry: Registry, content: bytes, name: str) -> tuple[Mapping[str, Entry], tuple[str, ...]]:
    from overlay.registry.explain import checked  # pydantic and the YAML reader, which most commands do without
    from overlay.registry.merge import lay_over
    from overlay.registry.server import apply_server_registry
    from overlay.registry.strict_yaml import parse

    below = {} if is_packaged(registry.path) else load_registry(packaged_registry(), environ={}).entries
    document = parse(content, name)
    models = checked(document).models
    entries, _ = lay_over(below, models, document, name)
    return apply_server_registry(entries, os.environ, Path.cwd())[0], tuple(models)
