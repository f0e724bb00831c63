"""Fingerprints: digests of content, always written ``algorithm:hex``."""

from __future__ import annotations

from overlay.fingerprint.actions import action_key
from overlay.fingerprint.digests import (
    BLOCK,
    Algorithm,
    BlockHasher,
    Buffer,
    bytes_digest,
    descriptor_digest,
    file_digest,
    git_blob_digest,
    parse_digest,
)
from overlay.fingerprint.memo import DigestMemo

__all__ = [
    "BLOCK",
    "Algorithm",
    "BlockHasher",
    "Buffer",
    "DigestMemo",
    "action_key",
    "bytes_digest",
    "descriptor_digest",
    "file_digest",
    "git_blob_digest",
    "parse_digest",
]
