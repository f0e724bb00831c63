"""Overlays that carry Python, on a hub folder: with a script of a test's own, or one that makes the VDN-H3 tree."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.hubs import add_repo, commit, shard

import overlay.sandbox
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO
from overlay.materialization.materialize import materialize
from overlay.materialization.request import Options
from overlay.sandbox import Ran, Sandbox
from overlay.sandbox.outputs import checked_output

if TYPE_CHECKING:
    import pytest

    from overlay.demo.checkpoint import HubFolder
    from overlay.sandbox import Job

__all__ = [
    "ENOUGH",
    "MODEL",
    "PATH",
    "PLAIN",
    "SCRIPT",
    "VDN_SCRIPT",
    "StandIn",
    "entry_text",
    "prepared",
    "reused",
    "scripted_hub",
    "scripted_options",
    "sha256",
    "vdn_options",
]

MODEL = "acme/source"
PATH = "_overlay/materialize.py"
SCRIPT = """
import shutil
from pathlib import Path

def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    out = Path(output_dir)
    (out / "unet").mkdir()
    data = (Path(source_dir) / "unet/w.safetensors").read_bytes()
    (out / "unet/made.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (out / "README.md").write_text("of the script")
"""
"""One weight with the last bit of the source's other than it was, and a README in the place of the overlay's."""
INDEX = {"_class_name": "P", "_diffusers_version": "0", "unet": ["diffusers", "U"]}

PLAIN = """
from pathlib import Path

def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    out, source = Path(output_dir), Path(source_dir)
"""
ENOUGH = """\
    (out / "unet").mkdir(exist_ok=True)
    (out / "unet/x.safetensors").write_bytes((source / "unet/w.safetensors").read_bytes())
"""
"""Behind ``PLAIN``: what makes a tree that a server loads. More of the body may follow each."""

# The plain rebuild, called as a server calls a script, links as servers make them, and the needs from the Hub's client.
VDN_SCRIPT = (
    Path(__file__).with_name("published_rule.py").read_text()
    + '''

def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    """Steps 3 to 11: the overlay's own files and the mapped audio VAE are there already."""
    from pathlib import Path

    from huggingface_hub import snapshot_download

    source, out = Path(source_dir), Path(output_dir)
    assert manifest["custom_materializer"] == "_overlay/materialize.py"
    assert (Path(overlay_dir) / "_overlay/overlay_manifest.json").is_file()
    needs = Path(snapshot_download("MiniMaxAI/MiniMax-H3"))
    for component in ("text_encoder", "tokenizer", "processor"):
        for path in sorted((needs / component).rglob("*")):
            if path.is_file():
                _link(path, out / path.relative_to(needs))
    _video_vae(source / "h3-base/vae", out / "video_vae")
    audio_config = {**read_json(source / "h3-base/audio_vae/config.json"), "_class_name": "MiniMaxH3AudioVAE"}
    write_json(out / "audio_vae/config.json", audio_config)
    _transformer(source, "stage-dmd-step-250", out / "transformer")


def _link(path, dest):
    dest.parent.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    try:
        os.link(path, dest)
    except OSError:
        os.symlink(path, dest)
'''
)


def sha256(script: str) -> str:
    """What an entry pins."""
    return hashlib.sha256(script.encode()).hexdigest()


def entry_text(script: str | None, *, needs: str = "", limits: str = "", model: str = MODEL) -> str:
    """A registry with one model."""
    pinned = f", script: {{sha256: {sha256(script)}}}" if script is not None else ""
    return f"""\
schema_version: 1
models:
  {model}:
    source: {{revision: {commit("a")}}}
    overlay: {{repo: acme/overlay, revision: {commit("b")}}}
    {needs}
    recipe: {{name: python{pinned}{limits}}}
"""


def scripted_hub(folder: Path, script: str, **manifest: Any) -> None:
    """A source with one weight, and an overlay with this script."""
    add_repo(folder, MODEL, commit("a"), {"unet/w.safetensors": shard("w"), "unet/config.json": "{}", "x.bin": b"x"})
    document = {"custom_materializer": PATH, **manifest}
    own = {
        "_overlay/overlay_manifest.json": json.dumps(document),
        PATH: script,
        "model_index.json": json.dumps(INDEX),
        "README.md": "of the overlay",
    }
    add_repo(folder, "acme/overlay", commit("b"), own)


def scripted_options(folder: Path, script: str | None, *, needs: str = "", limits: str = "", **choices: Any) -> Options:
    """Options of a run below ``folder``, whose hub is ``folder/hub``."""
    registry = folder / "registry.yaml"
    registry.write_text(entry_text(script, needs=needs, limits=limits))
    return Options(registry=registry, cache_root=folder / "root", hub=folder / "hub", **choices)


def prepared(folder: Path, script: str = SCRIPT, *, manifest: dict[str, Any] | None = None, **said: Any) -> Options:
    """A hub with this script, and options for it."""
    scripted_hub(folder / "hub", script, **(manifest or {}))
    return scripted_options(folder, script, **said)


def reused(folder: Path, options: Options) -> bool:
    """Whether a build runs nothing where what was published is gone, and only objects and action entries are left."""
    shutil.rmtree(folder / "root/.overlay/trees")
    shutil.rmtree(folder / "root/materialized_models")
    return materialize(MODEL, options).result == "reused"


def vdn_options(hub: HubFolder, folder: Path, script: str = VDN_SCRIPT) -> Options:
    """Beside the overlay of the hub another revision of it, which this script builds; options to build it."""
    revision = commit("e")
    overlay = hub.root / OVERLAY_REPO / revision
    if not overlay.exists():
        shutil.copytree(hub.overlay_folder, overlay)
        (overlay / PATH).write_text(script)
    registry = folder / "scripted.yaml"
    registry.write_text(f"""\
schema_version: 1
models:
  {SOURCE_REPO}:
    source: {{revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {revision}}}
    needs:
      - {{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [text_encoder, tokenizer, processor]}}
    recipe: {{name: python, script: {{sha256: {sha256(script)}}}}}
""")
    return Options(registry=registry, cache_root=folder / "root", hub=hub.root)


class StandIn:
    """In the place of the sandbox: calls the script here, unconfined, and counts how often. For tests of the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Job] = []
        monkeypatch.setattr(overlay.sandbox, "require_sandbox", lambda: Sandbox("bubblewrap", None))
        monkeypatch.setattr(overlay.sandbox, "run", self.run)

    def run(self, job: Job, *, sandbox: Sandbox | None = None) -> Ran:
        assert sandbox is not None
        self.jobs.append(job)
        script: dict[str, Any] = {}
        exec(job.script, script)  # noqa: S102 - a script of the tests
        folders = {name: str(getattr(job, name)) for name in ("overlay_dir", "source_dir", "output_dir")}
        script["materialize"](**folders, manifest=job.manifest)
        files = checked_output(job.output_dir, (job.overlay_dir, job.source_dir, *job.readable))
        return Ran(sandbox.name, 0.25, 2**20, "", files)
