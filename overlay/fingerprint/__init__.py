"""Fingerprints: digests of content, always written ``algorithm:hex``."""

from __future__ import annotations

from overlay.fingerprint.actions import action_key
from overlay.fingerprint.digests import (
    BLOCK,
    BlockHasher,
    Digests,
    block_digest,
    bytes_digest,
    descriptor_digests,
    digest_of_blocks,
    file_digests,
    git_blob_digest,
    parse_digest,
    safetensors_digest,
)
from overlay.fingerprint.memo import DigestMemo
from overlay.fingerprint.parts import blocks_of, digest_of_parts, file_digest, part_digest, parts_of
from overlay.fingerprint.streams import StreamHasher, stream_hasher
from overlay.fingerprint.tensors import Span, TensorHasher

__all__ = [
    "BLOCK",
    "BlockHasher",
    "DigestMemo",
    "Digests",
    "Span",
    "StreamHasher",
    "TensorHasher",
    "action_key",
    "block_digest",
    "blocks_of",
    "bytes_digest",
    "descriptor_digests",
    "digest_of_blocks",
    "digest_of_parts",
    "file_digest",
    "file_digests",
    "git_blob_digest",
    "parse_digest",
    "part_digest",
    "parts_of",
    "safetensors_digest",
    "stream_hasher",
]
