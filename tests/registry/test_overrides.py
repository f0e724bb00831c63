"""Which registry is in force, and how one is laid over another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.registries import ENTRY, VDN, A, B, C, D, load_text, registry_text

from overlay.errors import InvalidRegistry
from overlay.registry import Pin, load_registry
from overlay.registry.explain import checked
from overlay.registry.load import packaged_registry
from overlay.registry.merge import lay_over
from overlay.registry.strict_yaml import parse

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch


def overlay_at(revision: str) -> str:
    return registry_text(f"  {VDN}:\n    overlay: {{revision: {revision}}}\n")


def test_packaged_registry_is_the_last_resort(tmp_path: Path) -> None:
    """With nothing else the packaged file is in force, and nothing was replaced."""
    registry = load_registry(environ={}, cwd=tmp_path)
    assert registry.path == str(packaged_registry())
    assert registry.replaced == {}
    assert len(registry.entries) == 8


def test_order_of_overrides(tmp_path: Path) -> None:
    """Flag before variable before project file; only the first is laid over the packaged one."""
    for name, revision in {"flag": A, "variable": B, "registry": C}.items():
        (tmp_path / f"{name}.yaml").write_text(overlay_at(revision))
    below = tmp_path / "deep" / "down"
    below.mkdir(parents=True)
    environ = {"OVERLAY_REGISTRY": str(tmp_path / "variable.yaml")}

    def found(flag: Path | None, environ: dict[str, str]) -> tuple[str, str | None]:
        registry = load_registry(flag, environ=environ, cwd=below)
        overlay = registry.entries[VDN].overlay
        assert overlay is not None
        return registry.path, overlay.revision

    assert found(tmp_path / "flag.yaml", environ) == (str(tmp_path / "flag.yaml"), A)
    assert found(None, environ) == (str(tmp_path / "variable.yaml"), B)
    assert found(None, {}) == (str(tmp_path / "registry.yaml"), C)
    assert found(None, {"OVERLAY_REGISTRY": ""}) == (str(tmp_path / "registry.yaml"), C)


def test_consumers_are_replaced_whole(tmp_path: Path) -> None:
    """An override names its consumers anew, and the user is told; without them those below stay."""
    registry = load_text(tmp_path, registry_text(f"  {VDN}:\n    consumers: [overlay]\n"))
    untouched = load_text(tmp_path, overlay_at(A))

    assert registry.entries[VDN].consumers == ("overlay",)
    assert registry.replaced[VDN] == (f"consumers overlay replaces overlay, sglang ({tmp_path}/mine.yaml:3:3)",)
    assert untouched.entries[VDN].consumers == ("overlay", "sglang")


def test_nearest_project_file_counts(tmp_path: Path) -> None:
    """Of two registry files above the working directory the nearer one is in force."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "registry.yaml").write_text(overlay_at(A))
    (inner / "registry.yaml").write_text(overlay_at(B))
    assert load_registry(environ={}, cwd=inner).entries[VDN].overlay == Pin("kevin-mi/VDN-H3-overlay", B)


def test_home_is_expanded_in_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in OVERLAY_REGISTRY is the home folder; a relative path starts from the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text(overlay_at(A))
    for value in ("~/mine.yaml", "mine.yaml"):
        registry = load_registry(environ={"OVERLAY_REGISTRY": value}, cwd=tmp_path)
        assert registry.path == str(tmp_path / "mine.yaml")


def test_copy_of_the_packaged_registry_replaces_nothing(tmp_path: Path) -> None:
    """A project that copied the file sees no override until it changes something."""
    shutil.copyfile(packaged_registry(), tmp_path / "registry.yaml")
    registry = load_registry(environ={}, cwd=tmp_path)
    assert registry.path == str(tmp_path / "registry.yaml")
    assert registry.replaced == {}


def test_fields_are_merged_and_named(tmp_path: Path) -> None:
    """A new overlay commit keeps all else but the old fingerprint, and what it replaced is said."""
    below = load_registry(environ={}, cwd=tmp_path).entries[VDN]
    registry = load_text(tmp_path, overlay_at(A))
    entry = registry.entries[VDN]

    assert entry.overlay == Pin("kevin-mi/VDN-H3-overlay", A)
    assert (entry.source, entry.needs, entry.recipe) == (below.source, below.needs, below.recipe)
    assert below.overlay_fingerprint is not None
    assert entry.overlay_fingerprint is None
    assert (entry.place.file, entry.place.line) == (str(tmp_path / "mine.yaml"), 3)
    repo = "kevin-mi/VDN-H3-overlay"
    note = f"overlay {repo}@aaaaaaaaaaaa replaces {repo}@7de18275dddf ({tmp_path}/mine.yaml:3:3)"
    assert registry.replaced == {VDN: (note,)}
    assert len(registry.entries) == 8


def test_untouched_overlay_keeps_its_fingerprint(tmp_path: Path) -> None:
    """Another source does not change what is known of the overlay."""
    registry = load_text(tmp_path, registry_text(f"  {VDN}:\n    source: {{revision: {A}}}\n"))
    below = load_registry(environ={}, cwd=tmp_path).entries[VDN]
    assert registry.entries[VDN].overlay_fingerprint == below.overlay_fingerprint
    assert [note.split(" (")[0] for note in registry.replaced[VDN]] == [
        f"source {VDN}@aaaaaaaaaaaa replaces {VDN}@6d052b3e9cc6"
    ]


def test_new_fingerprint_is_taken(tmp_path: Path) -> None:
    """A fingerprint beside the new commit is that commit's."""
    text = registry_text(f"  {VDN}:\n    overlay: {{revision: {A}, fingerprint: {'f' * 64}}}\n")
    assert load_text(tmp_path, text).entries[VDN].overlay_fingerprint == "f" * 64


def test_fingerprint_alone_is_named(tmp_path: Path) -> None:
    """What is said of the same overlay moves the location, so its change is named too."""
    text = registry_text(f"  {VDN}:\n    overlay: {{fingerprint: {'f' * 64}, materializer_version: v2}}\n")
    notes = load_text(tmp_path, text).replaced[VDN]
    assert notes[0].startswith(f"fingerprint {'f' * 16} replaces 41b00cecdf03a395 (")
    assert notes[1].startswith("materializer_version v2 replaces v1")


def test_floating_replaces_a_pin_and_is_replaced_by_one(tmp_path: Path) -> None:
    """Commit and reason are one field: giving the one removes the other."""
    text = registry_text(
        f"  {VDN}:\n    source: {{floating: trying main}}\n",
        f"  Lightricks/LTX-2.3:\n    source: {{revision: {A}}}\n",
    )
    registry = load_text(tmp_path, text)
    assert registry.entries[VDN].source == Pin(VDN, None, "trying main")
    assert registry.entries["Lightricks/LTX-2.3"].source == Pin("Lightricks/LTX-2.3", A)


@pytest.mark.parametrize("section", ["source", "overlay"])
def test_new_repo_never_inherits_an_old_commit(tmp_path: Path, section: str) -> None:
    """A repo that changes without its revision is an error at the repo."""
    with pytest.raises(InvalidRegistry, match="without giving its revision") as caught:
        load_text(tmp_path, registry_text(f"  {VDN}:\n    {section}:\n      repo: acme/mirror\n"))
    assert caught.value.code == "repo-without-revision"
    assert str(caught.value).startswith("mine.yaml:5:7: ")


def test_same_repo_spelt_out_keeps_its_commit(tmp_path: Path) -> None:
    """Naming the repo that is there already changes nothing."""
    registry = load_text(tmp_path, registry_text(f"  {VDN}:\n    overlay: {{repo: kevin-mi/VDN-H3-overlay}}\n"))
    assert registry.replaced == {}


def test_needs_and_recipe_are_replaced_whole(tmp_path: Path) -> None:
    """A list of needs replaces the list, so a mirror stands alone; the stage of a recipe can change by itself."""
    text = registry_text(
        f"""\
  {VDN}:
    needs:
      - repo: acme/h3-mirror
        revision: {D}
        components: [text_encoder, tokenizer, processor]
    recipe:
      name: vdn-h3
      stage: stage-b-step-2000
"""
    )
    registry = load_text(tmp_path, text)
    assert [need.pin for need in registry.entries[VDN].needs] == [Pin("acme/h3-mirror", D)]
    assert registry.entries[VDN].recipe.options == {"stage": "stage-b-step-2000"}
    assert [note.split()[0] for note in registry.replaced[VDN]] == ["needs", "recipe", "serve"]


def test_place_in_the_source_moves_with_it(tmp_path: Path) -> None:
    """A lora whose base lies in the source takes it from the repo that the source is moved to."""
    lora = registry_text(
        f"""\
  acme/turbo:
    source: {{revision: {A}}}
    needs: [{{repo: acme/adapter, revision: {B}}}]
    recipe: {{name: lora, base: {{path: transformer}}, adapters: [{{repo: acme/adapter}}]}}
"""
    )
    entries = load_text(tmp_path, lora).entries
    moved = registry_text(f"  acme/turbo:\n    source: {{repo: acme/mirror, revision: {C}}}\n")
    document = parse(moved.encode(), "upper.yaml")
    upper, replaced = lay_over(entries, checked(document).models, document, "upper.yaml")
    recipe = "lora (base acme/{}/transformer, adapters acme/adapter)"
    assert replaced["acme/turbo"] == (
        "source acme/mirror@cccccccccccc replaces acme/turbo@aaaaaaaaaaaa (upper.yaml:3:3)",
        f"recipe {recipe.format('mirror')} replaces {recipe.format('turbo')} (upper.yaml:3:3)",
    )
    assert upper["acme/turbo"].recipe.options == {
        "base": {"repo": "acme/mirror", "path": "transformer"},
        "adapters": [{"repo": "acme/adapter", "path": ""}],
    }


def test_new_entry_stands_beside_the_packaged_ones(tmp_path: Path) -> None:
    """An override may add models; that replaces nothing."""
    registry = load_text(tmp_path, registry_text(ENTRY))
    assert list(registry.entries)[-1] == "acme/model"
    assert len(registry.entries) == 9
    assert registry.replaced == {}


def test_project_file_that_is_no_registry_says_how_it_was_found(tmp_path: Path) -> None:
    """Some other program's registry.yaml is an error that says why it was read and what to do."""
    (tmp_path / "registry.yaml").write_text("services:\n  - docker\n")
    with pytest.raises(InvalidRegistry) as caught:
        load_registry(environ={}, cwd=tmp_path)
    assert "registry.yaml:1:1: unknown key services" in str(caught.value)
    assert "found from the working directory" in (caught.value.hint or "")
    assert "--registry" in (caught.value.hint or "")


@pytest.mark.parametrize(("name", "reason"), [("nowhere.yaml", "no such file"), (".", "a folder")])
def test_unreadable_override_is_named(tmp_path: Path, name: str, reason: str) -> None:
    """A file that is named and cannot be read is an error, never a reason to take another."""
    with pytest.raises(InvalidRegistry, match=reason) as caught:
        load_registry(environ={"OVERLAY_REGISTRY": name}, cwd=tmp_path)
    assert caught.value.code == "registry-unreadable"
    assert caught.value.hint == "correct the file, or name another with --registry; it was named by OVERLAY_REGISTRY"


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("sub/registry.yaml"), "link to sub/registry.yaml, which is not there"),
        (make_loop, "Too many levels of symbolic links"),
        (Path.mkdir, "found a folder"),
        (os.mkfifo, "found a special file"),
    ],
    ids=["dangling", "loop", "folder", "pipe"],
)
@pytest.mark.parametrize("where", [".", "deep/down"])
def test_what_has_the_name_of_a_registry_is_not_passed_over(
    tmp_path: Path, make: Callable[[Path], None], reason: str, where: str
) -> None:
    """A project whose file cannot be read is never taken for one without a file; a pipe is not waited for."""
    make(tmp_path / "registry.yaml")
    (tmp_path / where).mkdir(parents=True, exist_ok=True)

    with pytest.raises(InvalidRegistry, match=reason) as caught:
        load_registry(environ={}, cwd=tmp_path / where)

    assert caught.value.code == "registry-unreadable"
    assert caught.value.data["where"] == str(tmp_path / "registry.yaml")
    assert "found from the working directory" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_above_that_may_not_be_looked_into(tmp_path: Path) -> None:
    """It has no registry for us; a file that may not be read is an error."""
    below = tmp_path / "closed/below"
    below.mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    try:
        assert load_registry(environ={}, cwd=below).path == str(packaged_registry())
    finally:
        (tmp_path / "closed").chmod(0o700)
    (tmp_path / "registry.yaml").touch(0)
    with pytest.raises(InvalidRegistry, match="no permission"):
        load_registry(environ={}, cwd=tmp_path)


def test_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the working directory is gone, there is no project file, and that is all."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert load_registry(environ={}).path == str(packaged_registry())


def test_every_floating_pin_of_the_packaged_registry_has_a_reason() -> None:
    """The packaged file pins every overlay; what floats says why."""
    for entry in load_registry(environ={}).entries.values():
        assert entry.overlay is not None
        assert entry.overlay.revision is not None
        for pin in entry.pins:
            assert pin.revision or len(pin.floating or "") > 20
