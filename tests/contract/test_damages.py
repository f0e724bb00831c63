"""What was done to the published files, whether a check finds it, and whether a build refuses it: never one alone."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.check import check
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO
from overlay.errors import BrokenInput, NotHere
from overlay.planning.recipes import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

    Damage = Callable[[Path], object]

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 86000\n"
SHARD, INDEX = "text_encoder/model-{:05d}-of-00002.safetensors", "text_encoder/model.safetensors.index.json"
BASE, AUDIO, VAE = "h3-base/transformer", "h3-base/audio_vae", "h3-base/vae"
WEIGHTS = "diffusion_pytorch_model"


def gone(*names: str) -> Damage:
    """Files that are not there."""
    return lambda root: [(root / name).unlink() for name in names]


def being(name: str, text: str | bytes = "") -> Damage:
    """A file with other content, or a new one."""

    def change(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def edited(name: str, edit: Callable[[dict[str, object]], object]) -> Damage:
    """A JSON file that says something else."""
    return lambda root: edit_json(root / name, edit)


def twice(name: str, copy: str) -> Damage:
    """A file that lies there twice."""
    return lambda root: shutil.copyfile(root / name, root / copy)


def cut(name: str) -> Damage:
    """A file without its last bytes."""
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-5])


def only_one(root: Path) -> None:
    """All weights in one file that is numbered, without an index: nothing is in doubt."""
    (root / INDEX).unlink()
    (root / SHARD.format(2)).unlink()
    (root / SHARD.format(1)).rename(root / "text_encoder/model-00001-of-00001.safetensors")


def unnamed_without_weights(root: Path) -> None:
    """A component that the entry takes, without weights, and of which the model index says nothing."""
    edited("model_index.json", lambda it: it.pop("text_encoder"))(*(root / OVERLAY_REPO).iterdir())
    gone(INDEX, SHARD.format(1), SHARD.format(2))(*(root / NEEDS_REPO).iterdir())


# Repo, damage, the codes of the findings that are errors, the code of the build's refusal
DAMAGES = [
    # Model index
    ("overlay", gone("model_index.json"), {"manifest-broken"}, "bad-model-index"),
    ("overlay", being("model_index.json", "{"), {"manifest-broken"}, "bad-json"),
    ("overlay", being("model_index.json", POINTER), {"manifest-broken"}, "lfs-pointer"),
    (
        "overlay",
        being("model_index.json", '{"_class_name": "P", "_diffusers_version": "0"}'),
        {"component-missing"},
        "component-missing",
    ),
    (
        "overlay",
        edited("model_index.json", lambda it: it.pop("transformer")),
        {"component-missing"},
        "component-missing",
    ),
    ("overlay", edited("model_index.json", lambda it: it.pop("tokenizer")), set(), None),
    ("overlay", edited("model_index.json", lambda it: it.update(image_encoder=[None, None])), set(), None),
    (
        "overlay",
        edited("model_index.json", lambda it: it.update(vocoder=["a", "B"])),
        {"component-missing"},
        "component-missing",
    ),
    (
        "overlay",
        lambda root: (root / "model_index.json").rename(root / "modular_model_index.json"),
        set(),
        None,
    ),
    # The overlay's own files
    ("overlay", being("README.md", POINTER), {"component-broken"}, "lfs-pointer"),
    ("overlay", being("tokenizer/added_tokens.json", "{]"), {"component-broken"}, "bad-json"),
    ("overlay", gone("README.md"), set(), None),
    # Small files of what is carried
    ("needs", being("tokenizer/tokenizer.json", POINTER), {"component-broken"}, "lfs-pointer"),
    ("needs", being("tokenizer/merges.txt", POINTER), {"component-broken"}, "lfs-pointer"),
    ("needs", being("text_encoder/config.json", POINTER), {"component-broken"}, "lfs-pointer"),
    ("needs", being("tokenizer/tokenizer.json"), {"component-broken"}, "bad-json"),
    ("needs", being("tokenizer/tokenizer_config.json", "<html>"), {"component-broken"}, "bad-json"),
    ("needs", being("tokenizer/tokenizer_config.json", b"{}\xff"), {"component-broken"}, "bad-json"),
    ("needs", being("text_encoder/config.json", "[]"), {"component-broken"}, "bad-json"),
    ("needs", being("text_encoder/config.json", '{"a": NaN, "b": 1, "b": Infinity}'), set(), None),
    ("needs", being("processor/preprocessor_config.json"), {"component-broken"}, "bad-json"),
    ("needs", being("processor/preprocessor_config.json", "[" * 100_000), {"component-broken"}, "bad-json"),
    ("needs", being("processor/notes.txt"), set(), None),
    ("needs", being("tokenizer/examples/odd.json", "no json"), set(), None),
    ("needs", being("vae/config.json"), set(), None),
    ("needs", gone("tokenizer/tokenizer.json"), set(), None),
    ("needs", gone("text_encoder/generation_config.json"), set(), None),
    ("source", being(f"{AUDIO}/notes.md", POINTER), {"component-broken"}, "lfs-pointer"),
    ("source", being("README.md", POINTER), set(), None),
    # Weights of what is carried
    ("needs", gone("text_encoder/config.json"), {"component-missing"}, "component-missing"),
    ("needs", gone(INDEX), {"checkpoint-broken"}, "bad-index"),
    ("needs", being(INDEX, "{}"), {"checkpoint-broken"}, "bad-index"),
    ("needs", being(INDEX), {"checkpoint-broken"}, "bad-json"),
    ("needs", only_one, set(), None),
    ("needs", gone(SHARD.format(2)), {"shard-missing"}, "missing-shards"),
    ("needs", gone(SHARD.format(1), SHARD.format(2)), {"shard-missing"}, "missing-shards"),
    ("needs", gone(INDEX, SHARD.format(1), SHARD.format(2)), {"component-missing"}, "component-missing"),
    ("both", unnamed_without_weights, {"component-missing"}, "component-missing"),
    ("needs", cut(SHARD.format(1)), {"checkpoint-broken"}, "truncated"),
    ("needs", being(SHARD.format(1), POINTER), {"component-broken"}, "lfs-pointer"),
    (
        "needs",
        edited(INDEX, lambda it: it["weight_map"].update({"no.such": "model-00001-of-00002.safetensors"})),
        {"checkpoint-broken"},
        "tensor-not-in-shard",
    ),
    ("needs", twice(SHARD.format(1), "text_encoder/model.fp16.safetensors"), set(), None),
    ("needs", lambda root: shutil.rmtree(root / "tokenizer"), {"component-missing"}, "component-missing"),
    ("source", twice(f"{AUDIO}/{WEIGHTS}.safetensors", f"{AUDIO}/extra.safetensors"), set(), None),
    ("source", cut(f"{AUDIO}/{WEIGHTS}.safetensors"), {"checkpoint-broken"}, "truncated"),
    # Weights of what is fused and re-laid
    (
        "source",
        twice(f"{VAE}/{WEIGHTS}-00001-of-00003.safetensors", f"{VAE}/extra.safetensors"),
        {"checkpoint-broken"},
        "extra-shards",
    ),
    ("source", gone(f"{VAE}/{WEIGHTS}-00001-of-00003.safetensors"), {"shard-missing"}, "missing-shards"),
    ("source", gone(f"{VAE}/config.json"), {"file-missing"}, "required-file-missing"),
    ("source", gone(f"{STAGE}/metadata.json"), {"file-missing"}, "required-file-missing"),
    ("source", gone(f"{STAGE}/linear_branch/model.safetensors"), {"file-missing"}, "required-file-missing"),
]


@pytest.mark.parametrize(("repo", "damage", "found", "refused"), DAMAGES)
def test_check_finds_what_the_build_refuses(
    tmp_path: Path, repo: str, damage: Damage, found: set[str], refused: str | None
) -> None:
    """By the same reason, and neither without the other."""
    hub = make_hub(tmp_path)
    places = {"overlay": hub.overlay_folder, "source": hub.source_folder, "needs": hub.needs_folder, "both": hub.root}
    damage(places[repo])

    assert (errors(hub, tmp_path), refusal(hub, tmp_path)) == (found, refused)


@pytest.mark.parametrize(
    ("damage", "found", "refused"),
    [
        (being("LICENSE", POINTER), {"component-broken"}, "lfs-pointer"),
        (gone(f"{VAE}/{WEIGHTS}-00002-of-00003.safetensors"), {"shard-missing"}, "missing-shards"),
        (cut(f"{VAE}/{WEIGHTS}-00002-of-00003.safetensors"), {"checkpoint-broken"}, "truncated"),
        (gone(f"{BASE}/{WEIGHTS}-00001-of-00002.safetensors"), {"shard-missing"}, "missing-shards"),
        (being(f"{BASE}/{WEIGHTS}-00001-of-00002.safetensors", POINTER), {"checkpoint-broken"}, "lfs-pointer"),
        (lambda root: shutil.rmtree(root / BASE), {"file-missing"}, "required-file-missing"),
        (gone(f"{VAE}/{WEIGHTS}.safetensors.index.json"), set(), None),
        (twice(f"{VAE}/{WEIGHTS}-00001-of-00003.safetensors", f"{VAE}/extra.safetensors"), set(), None),
        (being(f"{VAE}/config.json"), set(), None),
        (being("workflow.json", "// no JSON"), set(), None),
        (being("model_index.json", "{}"), set(), None),
    ],
)
def test_what_recipe_lora_carries(tmp_path: Path, damage: Damage, found: set[str], refused: str | None) -> None:
    """Without an overlay nothing says what the files of its base are to a server: only what is broken anywhere is."""
    hub = make_hub(tmp_path)
    damage(hub.source_folder)
    text = f"""\
schema_version: 1
models:
  acme/model:
    source: {{repo: {MODEL}, revision: {hub.source}}}
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: {BASE}}}
      adapters: [{{repo: {MODEL}, path: {STAGE}/adapters/default}}]
"""

    assert (errors(hub, tmp_path, text, "acme/model"), refusal(hub, tmp_path, text, "acme/model")) == (found, refused)


def test_a_model_index_may_come_by_a_mapping(tmp_path: Path) -> None:
    """What the server finds in the tree counts, and what it names has to be there with its weights."""
    hub = make_hub(tmp_path)
    source = hub.source_folder
    (hub.overlay_folder / "model_index.json").unlink()
    mappings = [{"type": "tree", "src": AUDIO, "dst_dir": "vae"}, {"src": "model_index.json"}]

    def edit(manifest: dict[str, object]) -> None:
        del manifest["custom_materializer"]
        manifest["file_mappings"] = mappings

    edit_json(hub.overlay_folder / "_overlay" / "overlay_manifest.json", edit)
    text = f"""\
schema_version: 1
models:
  acme/model:
    source: {{repo: {MODEL}, revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}
    recipe: {{name: mappings}}
"""
    index: dict[str, object] = {"_class_name": "P", "_diffusers_version": "0", "vae": ["diffusers", "V"]}
    outcomes = []
    for more in ({}, {"unet": ["diffusers", "U"]}, {"vae": None}):
        (source / "model_index.json").write_text(json.dumps(index | more))
        outcomes.append((errors(hub, tmp_path, text, "acme/model"), refusal(hub, tmp_path, text, "acme/model")))
    assert outcomes == [(set(), None), *[({"component-missing"}, "component-missing")] * 2]


def errors(hub: HubFolder, tmp_path: Path, registry: str | None = None, model: str = MODEL) -> set[str]:
    """Codes of what a check calls an error."""
    report = check(subject_of(hub, tmp_path, registry=registry, model=model))
    assert report.trouble is None
    return {finding.code for finding in report.findings if finding.severity == "error"}


def refusal(hub: HubFolder, tmp_path: Path, registry: str | None = None, model: str = MODEL) -> str | None:
    """The code by which a build refuses; None where it does not."""
    try:
        make_plan(subject_of(hub, tmp_path, registry=registry, model=model).inventory)
    except (BrokenInput, NotHere) as error:
        return error.code if error.exit_status == 1 else "not here yet"
    return None
