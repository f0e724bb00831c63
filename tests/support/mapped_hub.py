"""A small model whose overlay only moves files of its source, and what a server makes of it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from support.hubs import add_repo, commit, shard
from support.models import write_registry

from overlay.materialization.request import Options

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HIDDEN", "MAPPED", "mapped_hub", "mapped_source", "served_mapped_tree"]

MAPPED = "acme/source"
HIDDEN = ("vae/.gitattributes", "vae/.cache/v.json")
"""Files of the source that its overlay maps."""

_INDEX = json.dumps({"_class_name": "P", "_diffusers_version": "0", "unet": ["own", "U"]})


def mapped_hub(folder: Path, **choices: Any) -> Options:
    """Hub, registry and cache root in a new folder; options of a run on them."""
    hub = folder / "hub"
    source = {
        "unet/config.json": "{}",
        "unet/w.safetensors": shard("w"),
        "vae/v.safetensors": shard("v"),
        "x.txt": "x",
        **{path: path for path in HIDDEN},
    }
    mappings = [{"type": "tree", "src": "unet", "dst_dir": "unet"}, {"type": "tree", "src": "vae", "dst_dir": "vae"}]
    add_repo(hub, MAPPED, commit("a"), source)
    manifest = json.dumps({"file_mappings": mappings})
    add_repo(hub, "acme/overlay", commit("b"), {"_overlay/overlay_manifest.json": manifest, "model_index.json": _INDEX})
    registry = write_registry(
        folder,
        f"""\
  {MAPPED}:
    source: {{revision: {commit("a")}}}
    overlay: {{repo: acme/overlay, revision: {commit("b")}}}
    recipe: {{name: mappings}}
""",
    )
    return Options(registry=registry, hub=hub, cache_root=folder / "root", **choices)


def mapped_source(options: Options, path: str) -> Path:
    """Where a file of the source lies."""
    assert options.hub is not None
    [found] = options.hub.glob(f"**/{path}")
    return found


def served_mapped_tree(options: Options, built: Path, location: Path) -> Path:
    """A server's folder at a location, of a tree that was built: without our record, with the hidden files."""
    shutil.copytree(built, location)
    (location / "overlay_record.json").unlink()
    shutil.rmtree(location / "licenses", ignore_errors=True)
    for path in HIDDEN:
        (location / path).parent.mkdir(exist_ok=True)
        (location / path).write_bytes(mapped_source(options, path).read_bytes())
    return location
