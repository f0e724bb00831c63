"""What each bump of the made checkpoint may cost, by its headers alone, and stores in which nothing else can be read.

A counter says what the program believes that it read. So every weight that a bump must not touch can be replaced by a
stand-in: header and size are the original's, the payload is zeros. Whoever reads it, by a system call or by a mapping,
gets a digest or a tree that is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.fingerprint.entries import entry_bytes
from overlay.materialization.survey import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

__all__ = [
    "ALPHA",
    "BASE",
    "QUIET",
    "RESHARD",
    "TURBO",
    "Cost",
    "blobs",
    "cost_of",
    "linked_copy",
    "put_stand_in",
    "remember_digest",
    "remembered_digest",
    "sha256_of",
    "weights_of",
]

QUIET = (
    "adapter_config.json renamed to adapter_spec.json",
    "README changed in the overlay",
    "JSON whitespace changed in the overlay",
    "overlay revision moved, same content",
    "source revision moved, same content",
)
"""Bumps that change no weight and nothing that weights are made of."""

TURBO, ALPHA = "turbo adapter changed in one block", "alpha changed in one adapter's spec"
RESHARD = "base re-sharded, same tensors"

BASE = "h3-base/transformer"
ADAPTERS = {name: f"stage-dmd-step-250/adapters/{name}/adapter_model.safetensors" for name in ("default", "turbo")}

# Which pairs, by adapter and module, a bump gives other results.
_CHANGED: dict[str, Callable[[str, str], bool]] = {
    TURBO: lambda adapter, module: adapter == "turbo" and module.startswith("transformer_blocks.0."),
    ALPHA: lambda adapter, _module: adapter == "default",
    RESHARD: lambda _adapter, _module: True,
}


@dataclass(frozen=True)
class Cost:
    """What a bump may cost; paths are those of the source repo.

    Attributes:
        fetched: Weight files that have to be downloaded.
        rebuilt: Shards of the base that are fused anew.
        read: Weight files that have to be read.
        touched: Shards of the base with a pair of an adapter that is another file now.
        counters: The row of the table in bytes.
    """

    fetched: tuple[str, ...]
    rebuilt: tuple[str, ...]
    read: frozenset[str]
    touched: frozenset[str]
    counters: Counters

    @property
    def rebuilt_outputs(self) -> tuple[str, ...]:
        """The same shards, by their paths in the tree."""
        return tuple(path.removeprefix("h3-base/") for path in self.rebuilt)

    def why(self, output: str) -> str:
        """What the record says of a reused file."""
        if f"h3-base/{output}" in self.touched:
            return f"same base and factors: {ADAPTERS['turbo']} changed elsewhere"
        return "same inputs"


def cost_of(bump: str, hub: HubFolder) -> Cost:
    """The row of a bump, in bytes of payload.

    Args:
        hub: The checkpoint after the bump.
    """
    if bump in QUIET:
        return Cost((), (), frozenset(), frozenset(), Counters())
    folder, changed = hub.source_folder, _CHANGED[bump]
    base = sorted(f"{BASE}/{path.name}" for path in (folder / BASE).glob("*.safetensors"))
    factors = {name: _factors(folder / path) for name, path in ADAPTERS.items()}
    pairs = {
        shard: [(name, module) for module in _modules(folder / shard) for name in factors if module in factors[name]]
        for shard in base
    }
    rebuilt = tuple(shard for shard in base if any(changed(*pair) for pair in pairs[shard]))
    fetched = {TURBO: (ADAPTERS["turbo"],), ALPHA: (), RESHARD: tuple(base)}[bump]
    payload = {path: _payload(folder / path) for path in (*base, *ADAPTERS.values())}
    # Of the two adapters, a shard takes the pairs of its own weights. A retrained adapter is read once more, whole:
    # only the digests of its tensors tell which shards it leaves as they are.
    of_adapters = sum(factors[name][module] for shard in rebuilt for name, module in pairs[shard])
    learned = payload[ADAPTERS["turbo"]] if bump == TURBO else 0
    written = sum(payload[shard] for shard in rebuilt)
    downloaded = sum(payload[path] for path in fetched)
    return Cost(
        fetched,
        rebuilt,
        frozenset((*rebuilt, *ADAPTERS.values())),
        frozenset(shard for shard in base if bump == TURBO and any(name == "turbo" for name, _ in pairs[shard])),
        Counters(downloaded=downloaded, read=written + of_adapters + learned, written=written),
    )


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the payload of a safetensors file starts, and its tensors."""
    with path.open("rb") as file:
        [length] = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(length))
    tensors.pop("__metadata__", None)
    return 8 + length, tensors


def _payload(path: Path) -> int:
    return path.stat().st_size - _header(path)[0]


def _modules(shard: Path) -> list[str]:
    return [name.removesuffix(".weight") for name in _header(shard)[1] if name.endswith(".weight")]


def _factors(adapter: Path) -> dict[str, int]:
    """Bytes of A and B together, by the module's name in the base."""
    found: dict[str, int] = {}
    for name, info in _header(adapter)[1].items():
        module = name.partition(".lora_")[0].replace(".attn.orig.", ".attn.")
        start, end = info["data_offsets"]
        found[module] = found.get(module, 0) + end - start
    return found


# Stores


def linked_copy(folder: Path, to: Path) -> Path:
    """A copy that costs nothing: files are hardlinks. What is written in place, the locks, is left away."""
    shutil.copytree(folder, to, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns("locks"))
    return to


def put_stand_in(path: Path) -> None:
    """Replace a weight file by its header and zeros.

    The stand-in has an inode of its own. Zeroing in place would reach the objects and trees that are hardlinks of the
    Hub's blobs, which no rule forbids to use; and to a program that looks at stats it makes no difference, because
    either way the ctime is another.
    """
    size, start = path.stat().st_size, _header(path)[0]
    with path.open("rb") as file:
        header = file.read(start)
    path.unlink()
    path.write_bytes(header)
    os.truncate(path, size)


def weights_of(folder: Path) -> list[Path]:
    """Every weight file below a folder."""
    return sorted(folder.rglob("*.safetensors"))


def blobs(store: Path, of: Collection[str] = ("**/*.safetensors",)) -> set[Path]:
    """Blobs in the Hub's cache of all weight files, or of these paths."""
    return {link.resolve() for path in of for link in store.glob(f"models--*/snapshots/*/{path}")}


def _entry(root: Path, path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return root / ".overlay/digests" / f"{name}.json"


def remembered_digest(root: Path, path: Path) -> str:
    """What a cache root remembers of a file."""
    return str(json.loads(_entry(root, path).read_bytes())["entry"]["digest"])


def remember_digest(root: Path, path: Path, digest: str) -> None:
    """Let a cache root believe that it took this digest of a file as it is now.

    A program that trusts what it remembers reads no byte of it; for one that reads, it was changed under the same stat,
    which a test cannot do otherwise: no program can set a ctime.
    """
    found, entry = path.stat(), _entry(root, path)
    identity = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.unlink(missing_ok=True)  # it may be shared with the root that this one is a copy of
    entry.write_bytes(entry_bytes(1, os.path.realpath(path), {"identity": identity, "digest": digest}))


_digests: dict[tuple[int, int], str] = {}


def sha256_of(path: Path) -> str:
    """``sha256:<hex>`` of a file that nobody changes; once an inode, because revisions share their large files."""
    key = path.stat().st_ino, path.stat().st_mtime_ns
    if key not in _digests:
        with path.open("rb") as file:
            _digests[key] = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return _digests[key]
