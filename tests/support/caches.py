"""A whole small build on a cache, as materialization does it, and what must hold afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from typing import TYPE_CHECKING

from support.children import end_child, in_child, start_child

from overlay.cache import Cache, is_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.cache import Published

MODEL = "org/name"
TREE = "org__name-0123456789abcdef"
LOCATION = "org__name-e541eaf4b41d4e5c"
FILES = {
    "transformer/a.safetensors": b"a" * 5000,
    "transformer/b.safetensors": b"b" * 6000,
    "config.json": b'{"one": 1}',
}
OTHER = {**FILES, "transformer/b.safetensors": b"B" * 7000}
"""The same with other bytes in one file."""


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def add_object(cache: Cache, data: bytes) -> Path:
    """A finished file, by way of staging."""
    with cache.staging() as folder:
        (folder / "file").write_bytes(data)
        return cache.adopt_file(folder / "file", digest_of(data))


def hold_lock(cache: Cache, name: str) -> tuple[int, Callable[[], None]]:
    """The pid of a process that holds a lock, and what makes it let go (again and again, to no effect)."""
    told, tell = os.pipe()
    held, hold = os.pipe()

    def work() -> None:
        os.close(tell)
        with cache.lock(name, timeout=0):
            os.write(hold, b"x")
            os.read(told, 1)

    pid, outcome = start_child(work)
    os.close(hold)
    os.close(told)
    os.read(held, 1)
    os.close(held)
    living = [pid]

    def release() -> None:
        if living:
            living.clear()
            os.close(tell)
            end_child(pid, outcome)

    return pid, release


def killed_build(cache: Cache) -> Path:
    """The staging folder of a process that was killed while it wrote there."""

    def work() -> None:
        with cache.staging() as folder:
            (folder / "half").write_bytes(b"12345")
            os.kill(os.getpid(), signal.SIGKILL)

    before = set(cache.root.staging.glob("*"))
    assert in_child(work) == signal.SIGKILL
    (folder,) = set(cache.root.staging.glob("*")) - before
    return folder


def build(
    root: Path, *, tree: str = TREE, location: str = LOCATION, files: dict[str, bytes] = FILES, model: str = MODEL
) -> Published:
    """Build each file that no action gives, then publish the tree and swing the location."""
    cache = Cache.open(root, create=True)
    with cache.staging() as folder:
        outputs = []
        for path, data in files.items():
            entry = cache.find_action(key_of(path + digest_of(data)))
            if entry is None:
                made = folder / "made"
                made.write_bytes(data)
                cache.adopt_file(made, digest_of(data))
                entry = {"digest": digest_of(data), "size": len(data)}
                cache.put_action(key_of(path + digest_of(data)), entry)
            cache.place_file(cache.object_path(entry["digest"]), folder / "tree" / path, is_small(path, entry["size"]))
            outputs.append({"path": path, **entry})
        record = {"model": model, "tree": tree, "outputs": outputs}
        (folder / "tree" / "overlay_record.json").write_text(json.dumps(record))
        published = cache.publish_tree(folder / "tree", tree, verify=lambda path: is_whole(path, files))
    cache.swing_location(location, tree)
    return published


def is_whole(tree: Path, files: dict[str, bytes] = FILES) -> bool:
    """Whether a tree holds exactly these files and its record."""
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    return there == {*files, "overlay_record.json"} and all((tree / p).read_bytes() == d for p, d in files.items())


def assert_sound(root: Path, files: dict[str, bytes] = FILES, *, dangling: bool = False) -> None:
    """Nothing that a reader can see is half-made; a location may be dangling where a tree is being removed."""
    own = root / ".overlay"
    for path in (own / "objects").glob("*/*/*"):
        assert f"{path.parent.parent.name}:{path.name}" == digest_of(path.read_bytes())
    for path in (own / "trees").glob("*"):
        assert is_whole(path, files) or (dangling and not path.exists())
    for path in (root / "materialized_models").glob("*"):
        assert path.is_symlink()
        assert is_whole(path, files) or (dangling and not path.exists())
