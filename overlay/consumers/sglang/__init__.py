"""What sglang expects on disk, and what it does with what it is told, by release."""

from overlay.consumers.sglang.complete import why_incomplete
from overlay.consumers.sglang.fingerprint import extra_files, overlay_fingerprint
from overlay.consumers.sglang.identity import Identity, identity_of, location_name, marker_bytes
from overlay.consumers.sglang.sources import source_at
from overlay.consumers.sglang.table import BUILT_IN, BuiltIn, built_in
from overlay.consumers.sglang.told import for_server, goes_by, override_of
from overlay.consumers.sglang.versions import GRID_POINTS, NEWEST, OLDEST, STAGE, Release, release_of

__all__ = [
    "BUILT_IN",
    "GRID_POINTS",
    "NEWEST",
    "OLDEST",
    "STAGE",
    "BuiltIn",
    "Identity",
    "Release",
    "built_in",
    "extra_files",
    "for_server",
    "goes_by",
    "identity_of",
    "location_name",
    "marker_bytes",
    "overlay_fingerprint",
    "override_of",
    "release_of",
    "source_at",
    "why_incomplete",
]
