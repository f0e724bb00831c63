"""Action entries are claims: used when they hold, dropped and said when they do not."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import add_object, digest_of, key_of
from support.intruders import INTRUDERS, put_in_place
from support.users import other_user

from overlay.cache import Cache
from overlay.fingerprint.entries import entry_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

DATA = b"weights"
DIGEST = digest_of(DATA)
KEY = key_of("action")
ENTRY = {"digest": DIGEST, "size": len(DATA), "tensors": [["w", "BF16", [2, 2]]], "kernel": {"name": "mkl"}}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache.open(tmp_path / "root", create=True)
    add_object(cache, DATA)
    cache.put_action(KEY, ENTRY)
    return cache


def test_found_as_it_was_put(cache: Cache) -> None:
    """An entry comes back equal, and a later one replaces it whole."""
    assert cache.find_action(KEY) == ENTRY

    cache.put_action(KEY, {"digest": DIGEST, "size": len(DATA)})

    assert {"digest": DIGEST, "size": len(DATA)} == cache.find_action(KEY)
    assert cache.notes == []


def test_another_key_finds_nothing(cache: Cache) -> None:
    """A miss is silent."""
    assert cache.find_action(key_of("other")) is None
    assert cache.notes == []


def document(version: int = 2, key: str = KEY, entry: Any = ENTRY) -> bytes:
    """An entry that is whole, whatever it says."""
    return entry_bytes(version, key, entry)


def edited(**changes: Any) -> bytes:
    """An entry in which somebody changed something."""
    return json.dumps(json.loads(document()) | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        document(version=1),
        edited(schema_version=2.5),
        edited(check="sha256:" + "0" * 64),
        edited(check=None),
        edited(entry=ENTRY | {"kernel": {"name": "ordered"}}),
        edited(entry=ENTRY | {"tensors": [["v", "BF16", [2, 2]]]}),
        edited(more=1),
        document()[:-2],
        document().replace(b"BF16", b"BF17"),
        document(key=key_of("other")),
        document(entry=[]),
        document(entry={}),
        document(entry={"digest": DIGEST}),
        document(entry={"digest": DIGEST, "size": True}),
        document(entry={"digest": DIGEST, "size": str(len(DATA))}),
        document(entry={"digest": 5, "size": len(DATA)}),
        document(entry={"digest": "sha256:../../../etc/passwd", "size": len(DATA)}),
        document(entry={"digest": DIGEST, "size": len(DATA) + 1}),
        document(entry={"digest": digest_of(b"absent"), "size": len(DATA)}),
    ],
    ids=lambda data: repr(data[:40]),
)
def test_a_poisoned_entry_is_dropped(cache: Cache, data: bytes) -> None:
    """An entry that cannot be right is a miss, is removed, and is said; the object and the next entry are fine."""
    path = cache.root.action(KEY)
    path.write_bytes(data)

    assert cache.find_action(KEY) is None
    assert not path.exists()
    assert [str(path)] == [note.split(": ")[0] for note in cache.notes]
    assert cache.has_object(DIGEST, len(DATA))
    cache.put_action(KEY, ENTRY)
    assert cache.find_action(KEY) == ENTRY


def test_an_entry_is_used_as_it_is_written(cache: Cache) -> None:
    """What the cases of a poisoned entry start from is none."""
    cache.root.action(KEY).write_bytes(document())

    assert cache.find_action(KEY) == ENTRY
    assert edited() == document()


def test_a_truncated_object_is_a_miss(cache: Cache) -> None:
    """An object that lost bytes is not used."""
    cache.object_path(DIGEST).write_bytes(DATA[:-1])

    assert cache.find_action(KEY) is None
    assert "has another size" in cache.notes[0]


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_what_is_no_entry_at_all_is_dropped_too(cache: Cache, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, it is said, and the next entry takes its place."""
    path = cache.root.action(KEY)
    put_in_place(path, intruder)

    assert cache.find_action(KEY) is None
    assert not os.path.lexists(path)
    assert [f"{path}: not an action entry of this version, or damaged; dropped"] == cache.notes
    cache.put_action(KEY, ENTRY)
    assert cache.find_action(KEY) == ENTRY


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_an_entry_takes_the_place_of_anything(cache: Cache, intruder: str) -> None:
    """Also of what came after it was looked for."""
    put_in_place(cache.root.action(KEY), intruder)

    cache.put_action(KEY, ENTRY)

    assert cache.find_action(KEY) == ENTRY


def test_an_unreadable_entry_is_a_miss(cache: Cache) -> None:
    """What may not be opened is said and not used."""
    path = cache.root.action(KEY)
    path.chmod(0)

    with other_user():
        assert cache.find_action(KEY) is None
    assert len(cache.notes) == 1
    assert cache.notes[0].startswith(str(path))
    assert cache.notes[0].endswith("; not used")
