"""What differs between the releases of sglang that know overlays, as the released wheels have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.consumers.server import version_text
from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from overlay.consumers.server import Version

__all__ = ["GRID_POINTS", "NEWEST", "NEWEST_RELEASE", "OLDEST", "STAGE", "Matching", "Release", "release_of"]

OLDEST: Version = (0, 5, 10)
"""The first with overlays."""

NEWEST: Version = (0, 5, 23)
"""The last that was looked at; a newer one is taken to behave as it does."""


STAGE = "stage-dmd-step-250"
"""The stage of VDN-H3 that every release up to the newest has built in."""

GRID_POINTS = 9
"""Of that stage; a request of VDN-H3 for another number is refused."""

Matching = Literal["name", "anywhere", "part"]
"""How a path is taken for a model's source, besides by its last part, see :func:`source_at`."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release, by what it does.

    Attributes:
        hashes_fingerprint: The overlay's fingerprint enters the key (since 0.5.11).
        hashes_source_revision: The source's commit enters the key where one is told (since 0.5.22).
        matches_paths: A path is a model's source by its last part; then also where it holds the name of the source's
            folder in a Hub cache anywhere (since 0.5.13), or as a whole part (since 0.5.23).
        looks_into_components: A materialization needs weights below each of its components (since 0.5.14).
        looks_for_weights: Any diffusers folder needs weights at the top of each of its components (since 0.5.16).
        reads_modular_index: ``modular_model_index.json`` does where there is no ``model_index.json`` (since 0.5.21).
        skips_private_keys: Index entries that start with ``_`` are no components (since 0.5.22).
        shortens_lock_names: A lock's name that no filesystem takes becomes its digest alone (since 0.5.18).
        narrows_source: The source is looked up by the manifest's patterns alone; earlier ones ask whether the whole
            repo is in the Hub cache (since 0.5.19).
        honours_xdg: ``XDG_CACHE_HOME`` moves the cache root (since 0.5.19).
        counts_evaluations: ``num_inference_steps`` of a MiniMax-H3 request counts evaluations of the model; before, the
            grid points, which are one more (since 0.5.22).
    """

    version: Version
    hashes_fingerprint: bool
    hashes_source_revision: bool
    matches_paths: Matching
    looks_into_components: bool
    looks_for_weights: bool
    reads_modular_index: bool
    skips_private_keys: bool
    shortens_lock_names: bool
    narrows_source: bool
    honours_xdg: bool
    counts_evaluations: bool


def _release(version: Version) -> Release:
    return Release(
        version,
        hashes_fingerprint=version >= (0, 5, 11),
        hashes_source_revision=version >= (0, 5, 22),
        matches_paths="part" if version >= (0, 5, 23) else "anywhere" if version >= (0, 5, 13) else "name",
        looks_into_components=version >= (0, 5, 14),
        looks_for_weights=version >= (0, 5, 16),
        reads_modular_index=version >= (0, 5, 21),
        skips_private_keys=version >= (0, 5, 22),
        shortens_lock_names=version >= (0, 5, 18),
        narrows_source=version >= (0, 5, 19),
        honours_xdg=version >= (0, 5, 19),
        counts_evaluations=version >= (0, 5, 22),
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
            hint="name a newer release; or serve by path, which needs no overlay: overlay path, without --for",
            version=version_text(version),
        )
    return _release(version or NEWEST)
