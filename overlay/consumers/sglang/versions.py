"""What differs between the releases of sglang that know overlays, as the released wheels have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.consumers.server import version_text
from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from overlay.consumers.server import Version

__all__ = ["NEWEST", "NEWEST_RELEASE", "OLDEST", "Release", "release_of"]

OLDEST: Version = (0, 5, 10)
"""The first with overlays."""

NEWEST: Version = (0, 5, 23)
"""The last that was looked at; a newer one is taken to behave as it does."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release, by what it does.

    Attributes:
        hashes_fingerprint: The overlay's fingerprint enters the key (since 0.5.11).
        checks_weights: A tree needs a weight file in each component to count as complete (since 0.5.15).
        honours_xdg: ``XDG_CACHE_HOME`` moves the cache root (since 0.5.19).
        hashes_source_revision: The source's commit enters the key where one is told (since 0.5.22).
    """

    version: Version
    hashes_fingerprint: bool
    checks_weights: bool
    honours_xdg: bool
    hashes_source_revision: bool


def _release(version: Version) -> Release:
    return Release(
        version,
        hashes_fingerprint=version >= (0, 5, 11),
        checks_weights=version >= (0, 5, 15),
        honours_xdg=version >= (0, 5, 19),
        hashes_source_revision=version >= (0, 5, 22),
    )


NEWEST_RELEASE = _release(NEWEST)


def release_of(version: Version | None) -> Release:
    """The release of a version; None is the newest.

    Raises:
        InvalidUsage: It knows no overlays yet.
    """
    if version is not None and version < OLDEST:
        raise InvalidUsage(
            f"sglang {version_text(version)} has no overlays; the first that has is {version_text(OLDEST)}",
            code="unknown-server",
            hint='serve by path: sglang serve --model-path "$(overlay path MODEL)"',
            version=version_text(version),
        )
    return _release(version or NEWEST)
