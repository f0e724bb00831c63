"""How checks name what they found."""

from __future__ import annotations

import pytest

from overlay.contract.reading import folded_paths

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ([], ""),
        (["a/b.json"], "a/b.json"),
        (["a.json", "b.json"], "a.json, b.json"),
        (["x/a.json", "y/b.json"], "x/a.json, y/b.json"),
        (["a/b.json", "a/c.json"], "a/{b.json,c.json}"),
        (["s/a/default/c.json", "s/a/turbo/c.json"], "s/a/{default,turbo}/c.json"),
        (["s/default/c.json", "t/default/c.json"], "{s,t}/default/c.json"),
        (["a/d.json", "a/b/d.json"], "a/{d.json,b/d.json}"),
        (["d.json", "b/d.json"], "d.json, b/d.json"),
        ([f"a/{number}.json" for number in range(7)], "a/{0.json,1.json,2.json} and 4 more"),
        ([f"{number}.json" for number in range(5)], "0.json, 1.json, 2.json and 2 more"),
        (["a/\x1b[31m.json", "a/\n.json"], "a/{\\x1b[31m.json,\\n.json}"),
    ],
)
def test_what_paths_share_is_said_once(paths: list[str], text: str) -> None:
    """Folders that all of them begin or end with; the first few, and how many more."""
    assert folded_paths(paths, 3) == text
