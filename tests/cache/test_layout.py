"""Which root is in force, and what an opened root looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.intruders import INTRUDERS, put_in_place

from overlay.cache import Cache, CacheRoot, choose_root
from overlay.errors import BrokenInput, CannotWrite, InvalidUsage

pytestmark = pytest.mark.no_torch

OWN, SGLANG, XDG = "OVERLAY_CACHE_ROOT", "SGLANG_DIFFUSION_CACHE_ROOT", "XDG_CACHE_HOME"


@pytest.mark.parametrize(
    ("flag", "environ", "path", "decided_by"),
    [
        ("/f", {OWN: "/o", SGLANG: "/s", XDG: "/x"}, "/f", "--cache-root"),
        (None, {OWN: "/o", SGLANG: "/s", XDG: "/x"}, "/o", OWN),
        (None, {SGLANG: "/s", XDG: "/x"}, "/s", SGLANG),
        (None, {XDG: "/x"}, "/x/sgl_diffusion", XDG),
        (None, {}, "/home/me/.cache/sgl_diffusion", "HOME"),
        (None, {OWN: "", SGLANG: "", XDG: ""}, "/home/me/.cache/sgl_diffusion", "HOME"),
        (None, {OWN: "~/c"}, "/home/me/c", OWN),
        (None, {OWN: "~"}, "/home/me", OWN),
        ("~/f", {}, "/home/me/f", "--cache-root"),
        ("rel", {}, "{cwd}/rel", "--cache-root"),
        (None, {SGLANG: "rel/x"}, "{cwd}/rel/x", SGLANG),
        (None, {SGLANG: "~/s"}, "/home/me/s", SGLANG),
        (None, {XDG: ""}, "/home/me/.cache/sgl_diffusion", "HOME"),
    ],
)
def test_h23_root_order(flag: str | None, environ: dict[str, str], path: str, decided_by: str) -> None:
    """Flag, own variable, sglang's, XDG, home; empty counts as unset, `~` is expanded, the result is absolute."""
    chosen = choose_root(Path(flag) if flag else None, {"HOME": "/home/me", **environ})

    assert CacheRoot(Path(path.format(cwd=Path.cwd())), decided_by) == chosen


def test_open_makes_the_layout_once(tmp_path: Path) -> None:
    """A new root gets a version, a cache tag and the folder where consumers look; a second opening writes nothing."""
    root = tmp_path / "deep" / "root"
    Cache.open(root, create=True)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    Cache.open(root, create=True)

    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert (root / ".overlay/version").read_text() == "1\n"
    assert (root / ".overlay/CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert (root / "materialized_models").is_dir()


def test_looking_never_writes(tmp_path: Path) -> None:
    """Opening without creating, and every look-up, leave an absent root absent."""
    cache = Cache.open(tmp_path / "root", create=False)

    assert cache.find_action("0" * 64) is None
    assert cache.location_target("org__name-0") is None
    assert not cache.has_object("sha256:" + "0" * 64, 1)
    assert not (tmp_path / "root").exists()
    assert cache.notes == []


def test_a_root_that_sglang_made_first_is_taken(tmp_path: Path) -> None:
    """A root with materializations of a server is extended, and its trees are left as they are."""
    (tmp_path / "materialized_models" / "theirs").mkdir(parents=True)

    Cache.open(tmp_path, create=True)

    assert (tmp_path / ".overlay/version").exists()
    assert (tmp_path / "materialized_models" / "theirs").is_dir()


@pytest.mark.parametrize("text", ["2\n", "99", "", "one", "-1", "1.5"])
@pytest.mark.parametrize("create", [True, False])
def test_another_layout_is_refused(tmp_path: Path, text: str, *, create: bool) -> None:
    """A newer layout version, or one that makes no sense, is refused with both versions named."""
    Cache.open(tmp_path, create=True)
    (tmp_path / ".overlay/version").write_text(text)

    with pytest.raises(CannotWrite, match="this program knows versions to 1") as caught:
        Cache.open(tmp_path, create=create)

    assert caught.value.code == "layout-unknown"
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("intruder", sorted(INTRUDERS.keys() - {"link to nothing"}))
def test_what_is_no_version_at_all_is_refused(tmp_path: Path, intruder: str) -> None:
    """A folder, a pipe, a link to something else: refused at once."""
    Cache.open(tmp_path, create=True)
    put_in_place(tmp_path / ".overlay/version", intruder)

    with pytest.raises(CannotWrite):
        Cache.open(tmp_path, create=False)


def test_a_file_in_place_of_the_root_is_named(tmp_path: Path) -> None:
    """A root that is a file cannot be made; the error names it and where the choice came from."""
    (tmp_path / "root").write_text("")

    with pytest.raises(CannotWrite, match=f"{tmp_path}/root: ") as caught:
        Cache.open(tmp_path / "root", create=True, decided_by="OVERLAY_CACHE_ROOT")

    assert caught.value.data["decided_by"] == "OVERLAY_CACHE_ROOT"
    assert "comes from OVERLAY_CACHE_ROOT" in caught.value.hint


@pytest.mark.parametrize("digest", ["", "abc", "sha256:", "sha256:../../x", "sha256:" + "g" * 64, "md5:" + "0" * 32])
def test_bad_digests_are_refused(tmp_path: Path, digest: str) -> None:
    """What is not a digest never becomes a path."""
    with pytest.raises(BrokenInput):
        Cache.open(tmp_path, create=False).object_path(digest)


@pytest.mark.parametrize("key", ["", "../" * 8, "0" * 63, "0" * 64 + "\n", "sha256:" + "0" * 64])
def test_bad_action_keys_are_refused(tmp_path: Path, key: str) -> None:
    """What is not the hex digits of a sha256 never becomes a path."""
    with pytest.raises(BrokenInput):
        Cache.open(tmp_path, create=False).find_action(key)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a\\b", "a\0b", "a\nb", "x" * 256])
@pytest.mark.parametrize("path", ["tree_path", "location_path"])
def test_bad_names_are_refused(tmp_path: Path, name: str, path: str) -> None:
    """Trees and locations are one plain path component each."""
    with pytest.raises(InvalidUsage):
        getattr(Cache.open(tmp_path, create=False), path)(name)


def test_a_root_through_a_link(tmp_path: Path) -> None:
    """A root reached through a symlink works, locations included."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    cache = Cache.open(tmp_path / "link", create=True)
    cache.tree_path("t").mkdir(parents=True)

    cache.swing_location("here", "t")

    assert cache.location_target("here") == cache.tree_path("t")
    assert os.path.realpath(cache.location_path("here")) == str(tmp_path / "real/.overlay/trees/t")
