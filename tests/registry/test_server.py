"""sglang's own override variable, in both its forms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.registries import VDN, A, B

from overlay.consumers import sglang
from overlay.errors import InvalidRegistry
from overlay.registry import LOCAL, Pin, Registry, ServerSpec, load_registry
from overlay.registry.load import packaged_registry
from overlay.registry.variables import SGLANG_REGISTRY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

OVERLAY = "kevin-mi/VDN-H3-overlay"
PINNED = "7de18275dddfe59da36a234e222bcdd274963bc3"


def load(folder: Path, told: Any) -> Registry:
    value = told if isinstance(told, str) else json.dumps(told)
    return load_registry(environ={SGLANG_REGISTRY: value}, cwd=folder)


@pytest.mark.parametrize("form", ["inline", "absolute", "relative", "home"])
def test_both_forms_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Inline JSON and the path of a JSON file are two spellings of one registry."""
    told = json.dumps({VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": A, "source_revision": B}})
    (tmp_path / "told.json").write_text(told)
    monkeypatch.setenv("HOME", str(tmp_path))
    forms = {
        "inline": f"\n {told}\n",
        "absolute": f"{tmp_path}/told.json",
        "relative": "told.json",
        "home": "~/told.json",
    }
    registry = load(tmp_path, forms[form])
    entry = registry.entries[VDN]

    assert entry.overlay == Pin(OVERLAY, A)
    assert entry.source == Pin(VDN, B)
    assert entry.overlay_fingerprint is None
    assert entry.server == ServerSpec(OVERLAY, A, B)
    assert entry.recipe.name == "vdn-h3"
    assert registry.path == str(packaged_registry())
    assert [note.split(" (")[0] for note in registry.replaced[VDN]] == [
        f"source {VDN}@bbbbbbbbbbbb replaces {VDN}@6d052b3e9cc6",
        f"overlay {OVERLAY}@aaaaaaaaaaaa replaces {OVERLAY}@7de18275dddf",
    ]
    assert all(SGLANG_REGISTRY in note for note in registry.replaced[VDN])


@pytest.mark.parametrize("value", ["", "  \n", "{}"])
def test_empty_variable_changes_nothing(tmp_path: Path, value: str) -> None:
    """An empty variable, or an empty object, is no override."""
    registry = load(tmp_path, value)
    assert registry == load_registry(environ={}, cwd=tmp_path)


def test_location_is_the_exported_registrys(tmp_path: Path) -> None:
    """A source revision in the variable enters the key, as with the server that has it."""
    source = "ec875b5bde3832ff72511b079c70ea18b277c339"
    told = {VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": PINNED, "source_revision": source}}
    entry = load(tmp_path, told).entries[VDN]
    assert sglang.location_name(entry, entry.overlay_fingerprint) == "OpenVDN__vdn-minimax-h3-56cb2edd7eda552c"


def test_same_overlay_as_text_keeps_its_pin(tmp_path: Path) -> None:
    """The repo that is in force anyway keeps its commit; the server's ``main`` is in the key, and is said."""
    registry = load(tmp_path, {VDN: OVERLAY})
    entry = registry.entries[VDN]
    assert entry.overlay == Pin(OVERLAY, PINNED)
    assert entry.server == ServerSpec(OVERLAY, "main", None)
    assert sglang.location_name(entry, entry.overlay_fingerprint) == "OpenVDN__vdn-minimax-h3-051ddcd8cbd1de49"
    assert "takes kevin-mi/VDN-H3-overlay at main" in registry.replaced[VDN][0]


def test_main_floats(tmp_path: Path) -> None:
    """``main``, which the server's own documentation shows, is a floating pin and no error."""
    entry = load(tmp_path, {VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": "main"}}).entries[VDN]
    assert entry.overlay == Pin(OVERLAY, None, f"{SGLANG_REGISTRY} says main")
    assert entry.overlay_fingerprint is None


def test_model_of_its_own(tmp_path: Path) -> None:
    """A model that no registry has is built by its overlay's mappings, from a source that floats unless it is given."""
    told = {"acme/one": {"overlay_repo_id": "acme/overlay", "overlay_revision": A}}
    entry = load(tmp_path, told).entries["acme/one"]
    assert entry.source == Pin("acme/one", None, f"{SGLANG_REGISTRY} gives no source_revision")
    assert (entry.recipe.name, entry.place.file, entry.place.line) == ("mappings", SGLANG_REGISTRY, 0)


def test_overlay_folder(tmp_path: Path) -> None:
    """An overlay that is an existing folder is used in place; its spelling enters the key."""
    (tmp_path / "mine").mkdir()
    entry = load(tmp_path, {VDN: "./mine"}).entries[VDN]
    assert entry.overlay == Pin(str(tmp_path / "mine"), LOCAL)
    assert entry.server == ServerSpec("./mine", "main", None)
    assert entry.overlay_fingerprint is None


CASES = {
    "changes a repo": ({VDN: "acme/other"}, "repo-without-revision", "acme/other has no overlay_revision"),
    "new model unpinned": ({"acme/one": "acme/other"}, "repo-without-revision", "acme/other has no overlay_revision"),
    "branch": ({VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": "dev"}}, "not-a-commit", "'dev' is no commit"),
    "abbreviated": ({VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": A[:7]}}, "not-a-commit", "7 hex digits"),
    "source branch": (
        {VDN: {"overlay_repo_id": OVERLAY, "source_revision": "v1.0"}},
        "not-a-commit",
        "'v1.0' is no commit",
    ),
    "unknown key": (
        {VDN: {"overlay_repo_id": OVERLAY, "overlay_revison": A}},
        "unknown-key",
        "unknown key overlay_revis",
    ),
    "former key": ({VDN: {"overlay_repo_id": OVERLAY, "bundled_overlay_subdir": "x"}}, "unknown-key", "bundled"),
    "no repo": ({VDN: {"overlay_revision": A}}, "missing-key", "overlay_repo_id is missing"),
    "list": ({VDN: [OVERLAY]}, "wrong-type", "expected a repo id, or an object"),
    "null": ({VDN: None}, "wrong-type", "expected a repo id, or an object"),
    "number": ({VDN: {"overlay_repo_id": 1}}, "wrong-type", "overlay_repo_id: expected text"),
    "empty text": ({VDN: {"overlay_repo_id": OVERLAY, "overlay_revision": ""}}, "wrong-type", "overlay_revision"),
    "model is no repo": ({"../x": OVERLAY}, "invalid-repo-id", "'../x' is no repo id"),
    "h16 overlay leads out": ({VDN: {"overlay_repo_id": "../x/y", "overlay_revision": A}}, "invalid-repo-id", "../x/y"),
    "bad json": ('{"a": ', "bad-json", "line 1, column"),
    "key twice": ('{"a/b": "c/d", "a/b": "c/e"}', "duplicate-key", "given twice"),
    "missing file": ("nowhere.json", "registry-unreadable", "No such file"),
    "not an object": ("list.json", "bad-json", "array"),
}


@pytest.mark.parametrize(("told", "code", "message"), CASES.values(), ids=CASES)
def test_what_a_server_would_drop_is_an_error(tmp_path: Path, told: Any, code: str, message: str) -> None:
    """Everything that is not understood is an error that names the variable."""
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InvalidRegistry) as caught:
        load(tmp_path, told)
    assert caught.value.code == code
    assert str(caught.value).startswith(SGLANG_REGISTRY)
    assert message in str(caught.value)


def test_all_problems_come_together(tmp_path: Path) -> None:
    """Mistakes in several models are one error."""
    with pytest.raises(InvalidRegistry) as caught:
        load(tmp_path, {VDN: "acme/other", "acme/one": [], "x": OVERLAY})
    assert len(caught.value.data["problems"]) == 3


def test_project_file_is_below_it(tmp_path: Path) -> None:
    """The variable is laid over whichever registry is in force."""
    text = f"schema_version: 1\nmodels:\n  {VDN}:\n    overlay: {{repo: acme/overlay, revision: {A}}}\n"
    (tmp_path / "registry.yaml").write_text(text)
    registry = load(tmp_path, {VDN: "acme/overlay"})
    assert registry.entries[VDN].overlay == Pin("acme/overlay", A)
    assert registry.path == str(tmp_path / "registry.yaml")
    assert len(registry.replaced[VDN]) == 2


def test_models_of_a_file_are_those_of_the_file(tmp_path: Path) -> None:
    """A model that the variable changes is still one of the file; one that only the variable names is none."""
    text = f"schema_version: 1\nmodels:\n  {VDN}:\n    overlay: {{repo: acme/overlay, revision: {A}}}\n"
    (tmp_path / "registry.yaml").write_text(text)
    told = {"overlay_repo_id": "acme/other", "overlay_revision": B}
    registry = load(tmp_path, {VDN: told, "acme/model": told})
    assert registry.entries[VDN].place.file == SGLANG_REGISTRY
    assert registry.own == (VDN,)
