"""Licence and notice files: which of them, of which repos, come to every tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit
from support.models import write_registry
from support.small_models import BASE_REPO, MODEL, STYLE_REPO, small_options, write_small_hub

from overlay.fingerprint import DigestMemo
from overlay.formats.licenses import MAX_LICENSE_FILE, is_license
from overlay.hub import FolderRepo
from overlay.materialization.request import Options
from overlay.planning.licenses import with_licenses
from overlay.planning.outputs import CarriedFile
from overlay.planning.plan import InputBook

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Planner

pytestmark = pytest.mark.no_torch

PLACES = ("a/Model", "b/model")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, True) for name in ("LICENSE", "license.md", "LICENCE.txt", "LICENSE-MODEL", "LICENSE_CODE")),
        *((name, True) for name in ("LICENSES.md", "NOTICE", "Notice.txt", "COPYING", "USE_POLICY.md", "use_policy")),
        *((name, False) for name in ("licensee.md", "noticed.txt", "README.md", "copyings", "A-LICENSE")),
        *((name, False) for name in ("LICENSE.bin", "license.py", "notice.safetensors", "LICENSE.PT")),
    ],
)
def test_names(name: str, counts: bool) -> None:  # noqa: FBT001  # a table's column
    """In any case, with what belongs to such a name; no code, no weights."""
    assert is_license(name) is counts
    assert is_license(f"folder/{name}") is counts


def test_those_in_the_root_of_every_repo_come_along(hub: Path, plan_of: Planner) -> None:
    """Each under its repo's name; not what lies deeper, and nothing that is too large for a text."""
    write_small_hub(hub)
    add_repo(hub, BASE_REPO, commit("a"), {"LICENSE": "base", "unet/LICENSE": "deep", "NOTICE": "n"})
    large = {"LICENSE.md": "style", "COPYING": b"x" * (MAX_LICENSE_FILE + 1)}
    add_repo(hub, STYLE_REPO, commit("b"), large)
    outputs = plan_of(MODEL, small_options(hub)).outputs
    found = {
        output.path: output.input
        for output in outputs
        if output.path.startswith("licenses/")
        if isinstance(output, CarriedFile)
    }
    assert {path: (one.repo, one.path) for path, one in found.items()} == {
        "licenses/acme__base/LICENSE": (BASE_REPO, "LICENSE"),
        "licenses/acme__base/NOTICE": (BASE_REPO, "NOTICE"),
        "licenses/acme__style/LICENSE.md": (STYLE_REPO, "LICENSE.md"),
    }


def test_the_folder_of_a_repo_holds_what_the_repo_has(hub: Path, plan_of: Planner) -> None:
    """A base that was itself a tree has such folders: of repos that took no part here they come along."""
    write_small_hub(hub)
    carried = ("acme__base/LICENSE", "ACME__style/LICENSE", "acme__style/sub/x", "acme__other/LICENSE", "list.txt")
    files = {f"licenses/{name}": "forged" for name in carried}
    add_repo(hub, BASE_REPO, commit("a"), {"LICENSE": "own", **files})
    found = {
        output.path: output.input.path
        for output in plan_of(MODEL, small_options(hub)).outputs
        if output.path.startswith("licenses/")
        if isinstance(output, CarriedFile)
    }
    others = ("licenses/acme__other/LICENSE", "licenses/list.txt")
    assert found == {"licenses/acme__base/LICENSE": "LICENSE", **{path: path for path in others}}


def test_two_folders_of_one_name(tmp_path: Path) -> None:
    """Each has a place, whatever the case of their letters, and so has each file."""
    for parent, name in (("a", "Model"), ("b", "model")):
        add_repo(tmp_path, parent, name, {"LICENSE": parent, **({"license": "x"} if parent == "a" else {})})
    memo = DigestMemo(None)
    repos = [FolderRepo(tmp_path / place, repo=str(tmp_path / place), revision="local", memo=memo) for place in PLACES]
    books = [InputBook(repo, repo.repo, repo.revision, repo.digest) for repo in repos]
    places = ["licenses/Model/LICENSE", "licenses/Model/license-2", "licenses/model-2/LICENSE"]
    assert [file.path for file in with_licenses([], books)] == places


def test_of_an_overlay_repo_only_what_a_server_downloads_too(hub: Path, plan_of: Planner) -> None:
    """Its bare LICENSE in the snapshot would change the fingerprint, and so where the server looks."""
    add_repo(hub, "acme/source", commit("a"), {"a.json": "{}"})
    papers = {"LICENSE": "never fetched", "LICENSE.md": "fetched"}
    index = '{"_class_name": "P", "_diffusers_version": "0", "scheduler": ["diffusers", "S"]}'
    manifest = '{"file_mappings": [{"src": "a.json", "dst": "scheduler/a.json"}]}'
    own = {"model_index.json": index, "_overlay/overlay_manifest.json": manifest}
    add_repo(hub, "acme/overlay", commit("b"), papers | own)
    registry = write_registry(
        hub,
        f"""\
  acme/source:
    source: {{revision: {commit("a")}}}
    overlay: {{repo: acme/overlay, revision: {commit("b")}}}
    recipe: {{name: mappings}}
""",
    )
    plan = plan_of("acme/source", Options(registry=registry, hub=hub))
    licences = [output.path for output in plan.outputs if output.path.startswith("licenses/")]
    assert licences == ["licenses/acme__overlay/LICENSE.md"]
    assert "LICENSE" not in {item.path for item in plan.inputs()}
