"""What a caller may choose, and the places that follow from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from overlay.cache import Cache, LinkMode, choose_root
from overlay.consumers import sglang
from overlay.errors import InvalidUsage, NotHere
from overlay.fingerprint import DigestMemo
from overlay.planning.rules import DEFAULT_RULE
from overlay.registry import Registry, Resolution
from overlay.registry import resolve as resolve_model

if TYPE_CHECKING:
    from overlay.consumers.server import Server

__all__ = ["DEFAULTS", "Options", "Phase", "existing_folder", "open_cache", "open_memo", "resolved", "silent"]

Phase = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Called with a label and a total in bytes; gives what is called with bytes as they are done, from any thread.

A total below 0 is one that nobody knows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices of a run; the defaults suit a deploy script. Paths may be given as text, too.

    Attributes:
        registry: Registry file instead of the one that would be found.
        cache_root: Root instead of the one that the environment names.
        hub: Folder ``DIR/<org>/<name>/<revision>`` to read from instead of the Hub.
        offline: Make no request.
        allow_floating: Build from pins that nobody has established.
        rule: Numeric rule of the fuse: ``fp32-once`` or ``openvdn``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        jobs: Worker threads; None: as many as pay on this machine.
        memory: Bytes that a build may take beside what the device needs.
        link: How unchanged files come into the cache: ``auto``, ``reflink``, ``hardlink`` or ``copy``.
        only: Components (first folder of an output path) to build; empty: everything. With it nothing is published,
            the objects wait in the cache.
        allow_script: Let an overlay's own Python run also where a registry pins it that nobody named.
        lock_timeout: Seconds to wait while another process builds the same model.
        server: Whom the model is for: decides the location, and the root where nothing else does.
        store: URL of a store that is asked before anything is built, and offered what was built.
    """

    registry: Path | None = None
    cache_root: Path | None = None
    hub: Path | None = None
    offline: bool = False
    allow_floating: bool = False
    rule: str = DEFAULT_RULE
    device: str = "auto"
    jobs: int | None = None
    memory: int = 2**30
    link: LinkMode = "auto"
    only: tuple[str, ...] = ()
    lock_timeout: float = 3600.0
    allow_script: bool = False
    server: Server | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        for name in ("registry", "cache_root", "hub"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, Path(value))


DEFAULTS = Options()


def silent(_label: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    """A phase that shows nothing."""
    return nullcontext(lambda _nbytes: None)


def existing_folder(path: Path) -> Path:
    """The path of a folder that must be there, given as text or not.

    Raises:
        NotHere: It is not there.
        InvalidUsage: It is a file.
    """
    path = Path(path)
    if path.is_dir():
        return path
    if path.exists():
        raise InvalidUsage(
            f"{path}: is a file, expected a folder",
            code="not-a-folder",
            hint="name the folder it is in",
            path=str(path),
        )
    raise NotHere(
        f"{path}: no such folder", code="no-such-folder", hint=f"ls {quote(str(path.parent))}", path=str(path)
    )


def resolved(model: str, registry: Registry, options: Options) -> Resolution:
    """What a name stands for, as the server of these options is told of it.

    Raises:
        InvalidUsage: Unknown model, or a server that has no overlays.
        BrokenInput: The manifest of an overlay folder is unusable.
    """
    server = options.server
    resolution = resolve_model(model, registry, served=server is not None and server.name == "sglang")
    told = resolution.entry.server
    if server is not None and server.with_override and told is not None and told.by == "name":
        raise InvalidUsage(
            f"{model}: is the overlay itself, and a server that is given it takes nothing from an exported registry",
            code="option-conflict",
            hint=f"leave --with-override away, or name the model, {resolution.model}",
            model=model,
        )
    return replace(resolution, entry=sglang.for_server(resolution.entry, options.server))


def open_cache(options: Options, *, create: bool) -> Cache:
    """The cache of these options; nothing is written without ``create``."""
    server = options.server
    is_sglang = server is not None and server.name == "sglang"
    honours_xdg = not is_sglang or sglang.release_of(server.version if server else None).honours_xdg
    root = choose_root(options.cache_root, os.environ, honours_xdg=honours_xdg)
    return Cache.open(root.path, create=create, decided_by=root.decided_by)


def open_memo(cache: Cache, *, write: bool) -> DigestMemo:
    """Remembered digests of this cache; new ones are kept in memory only without ``write``."""
    return DigestMemo(cache.root.digests, write=write, objects=cache.object_path)
