"""Which paths a server takes for a source. tests/servers asks the released servers the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.demo_hub import MODEL, make_built_world

import overlay
from overlay.cache import CacheRoot
from overlay.consumers import sglang

if TYPE_CHECKING:
    from overlay.consumers.server import Version

RELEASES: tuple[Version, ...] = tuple((0, 5, patch) for patch in range(10, 24))
VDN = "OpenVDN/vdn-minimax-h3"


def sources(path: str, version: Version) -> str | None:
    return sglang.source_at(Path(path), [VDN], sglang.release_of(version))


@pytest.mark.no_torch
@pytest.mark.parametrize(
    ("path", "until_0_5_12", "until_0_5_22", "since_0_5_23"),
    [
        ("/data/vdn-minimax-h3", True, True, True),
        ("/data/VDN-minimax-h3", False, False, False),
        ("/hub/models--OpenVDN--vdn-minimax-h3/snapshots/abc", False, True, True),
        ("/hub/models--OpenVDN--vdn-minimax-h3-distilled/snapshots/abc", False, True, False),
        ("/data/OpenVDN__vdn-minimax-h3-0123456789abcdef", False, False, False),
    ],
)
def test_how_a_path_is_taken_for_a_source(
    path: str, *, until_0_5_12: bool, until_0_5_22: bool, since_0_5_23: bool
) -> None:
    """By its last part; then by a substring, which takes sibling repos too; then by a whole part."""
    found = {version: sources(path, version) == VDN for version in RELEASES}
    expected = {
        version: until_0_5_12 if version <= (0, 5, 12) else until_0_5_22 if version <= (0, 5, 22) else since_0_5_23
        for version in RELEASES
    }
    assert found == expected


def test_a_published_directory_is_no_source_to_any_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the tree nor the location, whatever the server has built in."""
    world = make_built_world(tmp_path)
    world.put_in_force(monkeypatch)
    state = overlay.resolve(MODEL).state
    assert state.tree
    assert state.location
    for version in RELEASES:
        models = [*sglang.built_in(version), MODEL]
        release = sglang.release_of(version)
        assert sglang.source_at(state.tree, models, release) is None
        assert sglang.source_at(state.location, models, release) is None
        assert not sglang.why_incomplete(state.tree, release, by_path=True)
        assert not sglang.why_incomplete(state.location, release)


@pytest.mark.no_torch
def test_a_cache_root_inside_the_hub_folder_of_a_source_makes_every_tree_a_source() -> None:
    """What `overlay check --for` has to say of such a root: served by path, the tree is taken for the source."""
    root = CacheRoot(Path("/hub/models--openvdn--vdn-minimax-h3/warm"))
    tree = root.trees / "OpenVDN__vdn-minimax-h3-0123456789abcdef"
    assert [sources(str(tree), version) for version in ((0, 5, 12), (0, 5, 13), (0, 5, 23))] == [None, VDN, VDN]
