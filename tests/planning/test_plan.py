"""Putting outputs together: order, collisions, paths that escape."""

from __future__ import annotations

import pytest

from overlay.errors import BrokenInput
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, Input
from overlay.planning.plan import finish, overlaid

pytestmark = pytest.mark.no_torch


def made(*paths: str) -> list[GeneratedFile]:
    return [GeneratedFile(path, path.encode()) for path in paths]


def test_outputs_come_in_path_order() -> None:
    """Whatever order the recipe makes them in."""
    assert [output.path for output in finish(made("b", "a/z", "a/b", "c"), "m")] == ["a/b", "a/z", "b", "c"]


@pytest.mark.parametrize(
    "paths", [("a", "a"), ("x/y.json", "x/y.json"), ("x/y", "x/./y"), ("x/y", "x//y"), ("a", "./a")]
)
def test_two_outputs_at_one_path_are_refused(paths: tuple[str, ...]) -> None:
    """Also where the spelling differs."""
    with pytest.raises(BrokenInput, match="two inputs claim") as caught:
        finish(made(*paths), "org/model")
    assert caught.value.code == "output-collision"
    assert "org/model" in caught.value.message


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b/c", "a"), ("a/b/c/d", "a/b")])
def test_a_path_is_a_file_or_a_folder(paths: tuple[str, ...]) -> None:
    """At any depth."""
    with pytest.raises(BrokenInput, match="both a file and a folder") as caught:
        finish(made("other", *paths), "org/model")
    assert caught.value.code == "output-collision"


@pytest.mark.parametrize(
    "paths", [("T/x", "t/x"), ("a.json", "A.JSON"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301"), ("A/b", "a")]
)
def test_names_that_some_filesystem_takes_for_one_are_refused(paths: tuple[str, ...]) -> None:
    """Letters of another case or composition; of folders with two spellings one is made there, which harms nothing."""
    with pytest.raises(BrokenInput, match=r"one file where letters have no case|both a file and a folder") as caught:
        finish(made("T/y", "t/z", *paths), "org/model")
    assert caught.value.code == "output-collision"


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "", ".", "a\0b", "a\\b"])
def test_h16_outputs_stay_in_their_folder(path: str) -> None:
    """Every escaping path is refused by name."""
    with pytest.raises(BrokenInput) as caught:
        finish(made("ok", path), "org/model")
    assert caught.value.code == "unsafe-path"


def test_an_alias_needs_its_file() -> None:
    """A recipe that names another is a bug here, not an input's fault."""
    with pytest.raises(ValueError, match="no output"):
        finish([*made("a"), AliasFile("b", "c")], "m")


def test_later_layers_replace_earlier_ones() -> None:
    """Within a layer too, the last one at a path stays, in the place of the first."""
    layers = [made("a", "b"), [GeneratedFile("b", b"new")], made("c")]
    assert list(overlaid(*layers)) == [GeneratedFile("a", b"a"), GeneratedFile("b", b"new"), GeneratedFile("c", b"c")]


def test_an_alias_is_not_followed_to_another_kind() -> None:
    """Aliases of carried and of generated files alike."""
    source = Input("org/x", "0" * 40, "w", 1, "sha256:1")
    outputs = [CarriedFile("w.safetensors", source), AliasFile("v.safetensors", "w.safetensors")]
    assert [type(output) for output in finish(outputs, "m")] == [AliasFile, CarriedFile]
