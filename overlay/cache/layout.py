"""Where things lie under a cache root, and which root that is.

``materialized_models/`` is where consumers look; everything of our own is in ``.overlay/`` beside it::

    materialized_models/<location>      relative link to ../.overlay/trees/<tree>
    .overlay/version                    layout version; a newer one is refused
    .overlay/objects/<algorithm>/<2 hex>/<hex>
    .overlay/actions/<2 hex>/<hex>.json
    .overlay/trees/<org>__<name>-<digest>/
    .overlay/quarantine/<tree>/         a tree whose output is not what a lock expects; no location leads to it
    .overlay/staging/<pid>-<start>-<place>-<random>/
    .overlay/incoming/<algorithm>-<hex>.<random>    a file on its way in from a store
    .overlay/leases/<tree>/<pid>-<start>-<place>-until-<seconds>-<random>    a reader; "timed-until-…" has no process
    .overlay/pins/<tree>                what a user said must stay
    .overlay/collecting/                collectors at work, and what they took out
    .overlay/verified/<tree>.json       when it was last read and found to be sound
    .overlay/current/<tree>             empty; its time is when a location last came to lead to the tree
    .overlay/rolled_back/<location>.json    that a user rolled the location back
    .overlay/contents/<2 hex>/<hex>     small files and headers of locked repos, for checks without a connection
    .overlay/locks/  .overlay/digests/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, InvalidUsage
from overlay.fingerprint import parse_digest
from overlay.registry.variables import SGLANG_CACHE_ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAYOUT_VERSION", "CacheRoot", "checked_name", "choose_root"]

# Raised by hand whenever an older version of this program would misread the folder.
LAYOUT_VERSION = 1

_KEY = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class CacheRoot:
    """A cache root and the folders under it.

    Attributes:
        path: Absolute path.
        decided_by: Option or variable that chose it, for messages.
    """

    path: Path
    decided_by: str = "--cache-root"

    @property
    def own(self) -> Path:
        """Everything of our own."""
        return self.path / ".overlay"

    @property
    def locations(self) -> Path:
        """Where consumers look."""
        return self.path / "materialized_models"

    @property
    def version(self) -> Path:
        """File that holds the layout version."""
        return self.own / "version"

    @property
    def objects(self) -> Path:
        """Finished files, by content."""
        return self.own / "objects"

    @property
    def actions(self) -> Path:
        """What made which object."""
        return self.own / "actions"

    @property
    def trees(self) -> Path:
        """Materializations."""
        return self.own / "trees"

    @property
    def quarantine(self) -> Path:
        """Trees that were not published, because a lock expects other output."""
        return self.own / "quarantine"

    @property
    def staging(self) -> Path:
        """Unfinished work, a folder for each build."""
        return self.own / "staging"

    @property
    def incoming(self) -> Path:
        """Files on their way in from a store, and what is left of those whose way was cut."""
        return self.own / "incoming"

    @property
    def leases(self) -> Path:
        """Who reads which tree, a folder for each tree."""
        return self.own / "leases"

    @property
    def pins(self) -> Path:
        """Trees that a user wants kept."""
        return self.own / "pins"

    @property
    def verified(self) -> Path:
        """Notes on trees that were found to be sound."""
        return self.own / "verified"

    @property
    def current(self) -> Path:
        """When which tree became current."""
        return self.own / "current"

    @property
    def rolled_back(self) -> Path:
        """Which locations a user rolled back."""
        return self.own / "rolled_back"

    @property
    def collecting(self) -> Path:
        """Collectors at work, and what they took out of its place."""
        return self.own / "collecting"

    @property
    def locks(self) -> Path:
        """Lock files and who holds them."""
        return self.own / "locks"

    @property
    def digests(self) -> Path:
        """Remembered digests, of local files and of the tensors of adapters."""
        return self.own / "digests"

    @property
    def contents(self) -> Path:
        """Small files and headers of the repos that a lock names."""
        return self.own / "contents"

    def object(self, digest: str) -> Path:
        """Path of an object by its digest, ``algorithm:hex``."""
        algorithm, value = parse_digest(digest)
        return self.objects / algorithm / value[:2] / value

    def action(self, key: str) -> Path:
        """Path of an action entry by its key, the hex digits of a sha256."""
        if _KEY.fullmatch(key) is None:
            raise BrokenInput(f"not an action key: {key[:100]!r} (expected 64 hex digits)", code="bad-digest")
        return self.actions / key[:2] / f"{key}.json"

    def tree(self, name: str) -> Path:
        """Path of a tree by its name."""
        return self.trees / checked_name(name, "tree")

    def location(self, name: str) -> Path:
        """Path of a location by its name."""
        return self.locations / checked_name(name, "location")


def checked_name(name: str, what: str) -> str:
    """``name`` if it is one plain path component; names come from registries and command lines.

    Raises:
        InvalidUsage: It is empty, hidden, too long, or would leave its folder.
    """
    bad = not name or name.startswith(".") or any(char in name for char in "/\\\0\n")
    if bad or len(name.encode(errors="surrogateescape")) > _LONGEST_NAME:
        raise InvalidUsage(
            f"{what} name {name[:100]!r}: expected one plain folder name", code="name-invalid", name=name
        )
    return name


def choose_root(flag: Path | None, environ: Mapping[str, str], *, honours_xdg: bool = True) -> CacheRoot:
    """The cache root in force: flag, own variable, sglang's variable, then the root of a bare sglang.

    Empty variables count as unset; ``~`` is the home folder of ``environ``.

    Args:
        honours_xdg: Whether ``XDG_CACHE_HOME`` moves the root of that sglang.

    Raises:
        InvalidUsage: A ``~`` for which there is no home folder.
    """
    if flag is not None:
        return CacheRoot(_absolute(str(flag), environ), "--cache-root")
    for variable in ("OVERLAY_CACHE_ROOT", SGLANG_CACHE_ROOT):
        if environ.get(variable):
            return CacheRoot(_absolute(environ[variable], environ), variable)
    base, decided_by = "~/.cache", "HOME"
    if honours_xdg and environ.get("XDG_CACHE_HOME"):
        base, decided_by = environ["XDG_CACHE_HOME"], "XDG_CACHE_HOME"
    return CacheRoot(_absolute(base, environ) / "sgl_diffusion", decided_by)


def _absolute(text: str, environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME")
    if home and (text == "~" or text.startswith("~/")):
        return Path(home + text[1:]).absolute()
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise InvalidUsage(
            f"{text}: no home folder is known that ~ could stand for",
            code="no-home",
            hint="set HOME, or choose a root with --cache-root or OVERLAY_CACHE_ROOT",
        ) from error
