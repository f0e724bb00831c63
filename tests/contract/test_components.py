"""Components that the model index promises, and those that are carried from needs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.checks.components import check_components
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO
from overlay.planning.recipes import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

OVERLAY_PIN, NEED_PIN = (5, 46), (7, 38)


def promise(name: str) -> Callable[[HubFolder], None]:
    """Let the model index name one more component."""
    return lambda hub: edit_json(
        hub.overlay_folder / "model_index.json", lambda it: it.update({name: ["lib", "Class"]})
    )


def bring(path: str) -> Callable[[HubFolder], None]:
    """Let the overlay bring a component and promise it."""

    def change(hub: HubFolder) -> None:
        promise(path.partition("/")[0])(hub)
        (hub.overlay_folder / path).parent.mkdir()
        (hub.overlay_folder / path).write_text("{}")

    return change


def empty(component: str, pattern: str) -> Callable[[HubFolder], None]:
    """Take files of a need's component out."""

    def change(hub: HubFolder) -> None:
        for path in (hub.needs_folder / component).glob(pattern):
            path.unlink()

    return change


def removed(component: str) -> Callable[[HubFolder], None]:
    """Take a need's component out."""
    return lambda hub: shutil.rmtree(hub.needs_folder / component)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="published"),
        pytest.param(bring("scheduler/scheduler_config.json"), id="brought-by-the-overlay"),
        pytest.param(lambda hub: (hub.overlay_folder / "model_index.json").write_text("{"), id="broken-index"),
        pytest.param(empty("processor", "*.json"), id="a-processor-needs-no-weights"),
    ],
)
def test_nothing_is_missing(tmp_path: Path, change: Callable[[HubFolder], None]) -> None:
    """What is promised is made, carried or brought; an index that is broken is another finding."""
    hub = make_hub(tmp_path)
    change(hub)

    assert [*check_components(subject_of(hub, tmp_path))] == []


@pytest.mark.parametrize(
    ("change", "said", "missing", "place"),
    [
        pytest.param(
            promise("vocoder"),
            "names components that recipe vdn-h3 does not make: vocoder; a server refuses a tree without them",
            ["vocoder"],
            OVERLAY_PIN,
            id="promised-and-not-made",
        ),
        pytest.param(
            removed("tokenizer"),
            f"{NEEDS_REPO}@{NEEDS_REVISION[:12]} has no folder tokenizer; there is processor, text_encoder;"
            " the entry takes tokenizer from it",
            ["tokenizer"],
            NEED_PIN,
            id="carried-and-absent",
        ),
        pytest.param(
            empty("text_encoder", "*.safetensors*"),
            "has no weights in text_encoder; there is text_encoder/{config.json,generation_config.json}",
            ["text_encoder"],
            NEED_PIN,
            id="carried-without-weights",
        ),
    ],
)
def test_a_component_is_missing(
    tmp_path: Path, change: Callable[[HubFolder], None], said: str, missing: list[str], place: tuple[int, int]
) -> None:
    """At the pin of the repo that lacks it."""
    hub = make_hub(tmp_path)
    change(hub)

    (finding,) = check_components(subject_of(hub, tmp_path))

    assert finding.code == "component-missing"
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    assert said in finding.message
    assert finding.data["missing"] == missing
    assert (finding.place.line, finding.place.column) == place
    assert finding.fix


def test_a_misspelt_component_is_one_to_correct(tmp_path: Path) -> None:
    """What the entry itself names wrongly no other commit has."""
    hub = make_hub(tmp_path)
    text = f"""\
schema_version: 1
models:
  acme/model:
    source: {{repo: {MODEL}, revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}
    needs: [{{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [text_encodr, vae]}}]
    recipe: {{name: python}}
"""
    misspelt, other = check_components(subject_of(hub, tmp_path, model="acme/model", registry=text))

    assert misspelt.fix == "correct the name under components; the nearest is text_encoder"
    assert other.fix == "name the folders under components that the script reads, or leave components away"


def test_nobody_knows_what_a_script_takes_of_a_folder(tmp_path: Path) -> None:
    """One without weights may be all that it reads: a config, a tokenizer."""
    hub = make_hub(tmp_path)
    for path in (hub.root / NEEDS_REPO / NEEDS_REVISION / "text_encoder").glob("*.safetensors*"):
        path.unlink()
    text = f"""\
schema_version: 1
models:
  acme/model:
    source: {{repo: {MODEL}, revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}
    needs: [{{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [text_encoder]}}]
    recipe: {{name: python}}
"""
    assert [*check_components(subject_of(hub, tmp_path, model="acme/model", registry=text))] == []


@pytest.mark.parametrize(
    ("mappings", "missing"),
    [
        ([{"type": "tree", "src": "h3-base", "dst_dir": "."}], ["video_vae"]),
        ([{"type": "tree", "src": "h3-base/vae", "dst_dir": "video_vae"}], ["audio_vae", "transformer"]),
        ([{"type": "glob", "src": "h3-base/**"}], ["audio_vae", "transformer", "video_vae"]),
    ],
)
def test_what_mappings_make(tmp_path: Path, mappings: list[dict[str, str]], missing: list[str]) -> None:
    """Their destinations are the components of the recipe of that name."""
    hub = make_hub(tmp_path)

    def edit(manifest: dict[str, object]) -> None:
        del manifest["custom_materializer"]
        manifest["file_mappings"] = mappings

    edit_json(hub.overlay_folder / "_overlay" / "overlay_manifest.json", edit)
    edit_json(
        hub.overlay_folder / "model_index.json",
        lambda it: [it.pop(name) for name in ("text_encoder", "tokenizer", "processor")],
    )
    text = f"""\
schema_version: 1
models:
  {MODEL}:
    source: {{revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}
    recipe: {{name: mappings}}
"""

    (finding,) = check_components(subject_of(hub, tmp_path, registry=text))

    assert finding.data["missing"] == missing


def test_a_clone_without_git_lfs_is_one_finding(tmp_path: Path) -> None:
    """Every file that is kept by it is a pointer: the first is shown whole, and the others are named."""
    hub = make_hub(tmp_path)
    names = ["text_encoder/model-00001-of-00002.safetensors", "tokenizer/merges.txt", "tokenizer/tokenizer.json"]
    for name in names:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 86000\n"
        (hub.needs_folder / name).write_text(pointer)

    (finding,) = check_components(subject_of(hub, tmp_path))

    assert finding.code == "component-broken"
    assert (finding.place.line, finding.place.column) == NEED_PIN
    assert finding.message.startswith(f"{hub.needs_folder / names[0]}: found a Git LFS pointer of 130 bytes")
    assert finding.message.endswith("; 2 other files likewise: tokenizer/{merges.txt,tokenizer.json}")
    assert finding.data["paths"] == names


def test_components_that_no_recipe_takes_are_not_asked_for(tmp_path: Path) -> None:
    """Recipe lora names the paths that it reads; a folder that it does not read keeps nothing from being built."""
    hub = make_hub(tmp_path)
    text = f"""\
schema_version: 1
models:
  acme/model:
    source: {{repo: {MODEL}, revision: {hub.source}}}
    needs: [{{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [vocoder]}}]
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: h3-base/transformer}}
      adapters: [{{repo: {MODEL}, path: stage-dmd-step-250/adapters/default}}]
"""
    subject = subject_of(hub, tmp_path, model="acme/model", registry=text)

    assert [*check_components(subject)] == []
    assert make_plan(subject.inventory).outputs
