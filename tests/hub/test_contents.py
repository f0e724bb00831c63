"""What a lock leaves behind for checks without a connection: kept exactly, and never believed once it is damaged."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hubs import shard

from overlay.formats.header import parse_header
from overlay.hub.contents import Contents, header_digest

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.formats.header import Header

pytestmark = pytest.mark.no_torch

DATA = b'{"rank": 8}\n'
WEIGHTS = shard("b", "a", nbytes=24)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def header_of(data: bytes) -> Header:
    return parse_header(data, len(data), "file")


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_gives_back_what_was_kept(tmp_path: Path) -> None:
    """A small file and a header come back equal, also to another run."""
    Contents(tmp_path / "c").keep_file(sha256(DATA), DATA)
    Contents(tmp_path / "c").keep_header(sha256(WEIGHTS), header_of(WEIGHTS))
    contents = Contents(tmp_path / "c")
    header = contents.header(sha256(WEIGHTS), len(WEIGHTS), header_digest(header_of(WEIGHTS)))

    assert contents.small_file(sha256(DATA)) == DATA
    assert header == header_of(WEIGHTS)
    assert header is not None
    assert list(header.tensors) == list(header_of(WEIGHTS).tensors)
    assert not [path for path in stored(tmp_path) if path.suffix == ".tmp"]


def test_what_is_kept_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    """Who may read the cache may read this too: no file is private to whoever ran ``overlay lock``."""
    Contents(tmp_path / "c").keep_file(sha256(DATA), DATA)
    (tmp_path / "other").touch()

    assert [path.stat().st_mode for path in stored(tmp_path / "c")] == [(tmp_path / "other").stat().st_mode]


def test_has_nothing_at_first_and_makes_no_folder(tmp_path: Path) -> None:
    """Asking writes nothing."""
    contents = Contents(tmp_path / "c")

    assert contents.small_file(sha256(DATA)) is None
    assert contents.header(sha256(WEIGHTS), len(WEIGHTS), header_digest(header_of(WEIGHTS))) is None
    assert not (tmp_path / "c").exists()


def test_without_a_folder_nothing_is_kept() -> None:
    """A store without a place is one that has nothing."""
    contents = Contents(None)
    contents.keep_file(sha256(DATA), DATA)

    assert contents.small_file(sha256(DATA)) is None


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """Where a file is in the way, nothing is kept and nothing fails."""
    (tmp_path / "c").write_text("")
    contents = Contents(tmp_path / "c")
    contents.keep_file(sha256(DATA), DATA)
    contents.keep_header(sha256(WEIGHTS), header_of(WEIGHTS))

    assert contents.small_file(sha256(DATA)) is None


@given(st.data())
def test_any_damage_makes_it_absent(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any byte changed, cut off or added, in a file or a header: as if it were not there, and kept anew it is whole."""
    folder = tmp_path_factory.mktemp("contents")
    contents = Contents(folder)
    contents.keep_file(sha256(DATA), DATA)
    contents.keep_header(sha256(WEIGHTS), header_of(WEIGHTS))
    for path in stored(folder):
        sound = path.read_bytes()
        at = data.draw(st.integers(0, len(sound) - 1))
        damaged = data.draw(
            st.sampled_from(
                [
                    sound[:at],
                    sound[:at] + bytes([sound[at] ^ data.draw(st.integers(1, 255))]) + sound[at + 1 :],
                    sound + b"x",
                    b"",
                ]
            )
        )
        path.write_bytes(damaged)

    assert contents.small_file(sha256(DATA)) is None
    header = contents.header(sha256(WEIGHTS), len(WEIGHTS), header_digest(header_of(WEIGHTS)))
    assert header is None or header == header_of(WEIGHTS)  # JSON has more than one spelling of the same
    contents.keep_file(sha256(DATA), DATA)
    contents.keep_header(sha256(WEIGHTS), header_of(WEIGHTS))
    assert contents.small_file(sha256(DATA)) == DATA
    assert contents.header(sha256(WEIGHTS), len(WEIGHTS), header_digest(header_of(WEIGHTS))) == header_of(WEIGHTS)


def test_a_sound_header_of_other_tensors_is_not_believed(tmp_path: Path) -> None:
    """An entry that was replaced by a whole one of something else is told by the lock's digest and size."""
    contents, other = Contents(tmp_path), shard("c", nbytes=24)
    contents.keep_header(sha256(WEIGHTS), header_of(other))

    assert contents.header(sha256(WEIGHTS), len(other), header_digest(header_of(WEIGHTS))) is None
    assert contents.header(sha256(WEIGHTS), len(other) + 1, header_digest(header_of(other))) is None
    assert contents.header(sha256(WEIGHTS), len(other), None) is None
    assert contents.header(sha256(WEIGHTS), len(other), header_digest(header_of(other))) == header_of(other)


@pytest.mark.parametrize("document", [[], {}, {"entry": None}, {"entry": {"tensors": 1}}, "x"])
def test_json_of_another_kind_is_absent(document: object, tmp_path: Path) -> None:
    """What is JSON but no entry is not there."""
    contents = Contents(tmp_path)
    contents.keep_header(sha256(WEIGHTS), header_of(WEIGHTS))
    (path,) = stored(tmp_path)
    path.write_text(json.dumps(document))

    assert contents.header(sha256(WEIGHTS), len(WEIGHTS), header_digest(header_of(WEIGHTS))) is None


def test_header_digest_is_free_of_order_and_of_nothing_else() -> None:
    """Names, dtypes and shapes in any order; another name or shape is another digest."""
    assert header_digest(header_of(shard("a", "b"))) == header_digest(header_of(shard("b", "a")))
    assert header_digest(header_of(shard("a", "b"))) != header_digest(header_of(shard("a", "c")))
    assert header_digest(header_of(shard("a"))) != header_digest(header_of(shard("a", nbytes=17)))
