"""The overlay's own papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.checks.manifest import check_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

MANIFEST, INDEX = "_overlay/overlay_manifest.json", "model_index.json"


def edited(path: str, edit: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change a JSON file of the overlay."""
    return lambda root: edit_json(root / path, edit)


def written(path: str, text: str) -> Callable[[Path], None]:
    """Replace a file of the overlay."""
    return lambda root: (root / path).write_text(text) and None


def removed(path: str) -> Callable[[Path], None]:
    """Take out a file of the overlay."""
    return lambda root: (root / path).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(removed(MANIFEST), f"has no {MANIFEST}, so it is no overlay", id="absent"),
        pytest.param(written(MANIFEST, '{"a": 1,'), f"{MANIFEST}: line 1, column", id="cut"),
        pytest.param(written(MANIFEST, '{"a": 1, "a": 2}'), "key 'a' is given twice", id="twice"),
        pytest.param(
            edited(MANIFEST, lambda it: it.update(required_source_files="x")), "required_source_files", id="type"
        ),
        pytest.param(
            edited(MANIFEST, lambda it: it["required_source_files"].append("../../etc/passwd")),
            "leads out of its folder",
            id="h16-path",
        ),
        pytest.param(
            removed("_overlay/materialize.py"),
            "custom_materializer is _overlay/materialize.py, which the overlay does not have",
            id="script",
        ),
        pytest.param(
            edited(MANIFEST, lambda it: it.update(required_source_files=[f"f{n}" for n in range(100_000)])),
            "required_source_files has 100000 entries; expected at most 10000",
            id="flood-of-files",
        ),
        pytest.param(
            edited(MANIFEST, lambda it: it.update(source_allow_patterns=["*"] * 201)),
            "source_allow_patterns has 201 entries; expected at most 200",
            id="flood-of-patterns",
        ),
        pytest.param(
            edited(MANIFEST, lambda it: it.update(file_mappings=[{"src": "a"}] * 201)),
            "file_mappings has 201 entries; expected at most 200",
            id="flood-of-mappings",
        ),
        pytest.param(written(MANIFEST, "[" * 100_000), "nested too deeply", id="deep"),
        pytest.param(written(INDEX, "[]"), f"{INDEX}: found a JSON array", id="index"),
        pytest.param(
            edited(INDEX, lambda it: it.pop("_diffusers_version")), "has no _diffusers_version", id="index-version"
        ),
    ],
)
def test_papers_that_cannot_be_used(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    """One finding at the overlay's pin, with the file first."""
    hub = make_hub(tmp_path)
    subject = subject_of(hub, tmp_path)
    spoil(hub.overlay_folder)

    (finding,) = check_manifest(subject)

    assert finding.code == "manifest-broken"
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    assert finding.message.startswith(str(hub.overlay_folder))
    assert said in finding.message
    assert (finding.place.line, finding.place.column) == (5, 46)
    mend = "add _diffusers_version to the file, or go to a sound one: " if "no _diffusers_version" in said else ""
    assert finding.fix == f"{mend}overlay bump {MODEL}"


@pytest.mark.parametrize("spoil", [lambda _: None, removed(INDEX)], ids=["published", "no-index"])
def test_papers_that_can(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """That a tree has a model index is looked at with its components: a mapping may bring it."""
    hub = make_hub(tmp_path)
    spoil(hub.overlay_folder)

    assert [*check_manifest(subject_of(hub, tmp_path))] == []
