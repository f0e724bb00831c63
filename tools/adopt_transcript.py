"""Adopting the folder of a server, typed and answered: the transcript of ``docs/how-to/adopt-a-tree.md``.

    python tools/adopt_transcript.py

The model is the small one of the demo; what the server built is made by this program, and left as a server leaves it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from overlay.cli._main import run
from overlay.demo.checkpoint import SOURCE_REPO, write_hub
from overlay.demo.registry import write_registry
from overlay.formats.licenses import LICENSES_FOLDER
from overlay.formats.materialized import MARKER_NAME, RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = SOURCE_REPO
SHARD = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"


def transcript(root: Path) -> str:
    """Every command with what it printed, and its status where that is not 0; the cache root is called ``/data/cache``.

    Args:
        root: An empty folder to work in.
    """
    hub = write_hub(root / "hub", blocks=1)
    write_registry(root / "registry.yaml", hub)
    cache = root / "cache"
    variables = {"HUB": hub.root, "REGISTRY": root / "registry.yaml", "CACHE_ROOT": root / "elsewhere"}
    with mock.patch.dict(os.environ, {f"OVERLAY_{name}": str(place) for name, place in variables.items()}):
        _type(["prewarm", MODEL])
        [location] = (root / "elsewhere/materialized_models").iterdir()
        folder = cache / "materialized_models" / location.name
        _leave_as_a_server(location, folder)
        os.environ["OVERLAY_CACHE_ROOT"] = str(cache)
        lines = [*_typed(["path", MODEL]), "", *_typed(["adopt", MODEL, "--dry-run"]), ""]
        _flip_last_bit(folder / SHARD)
        lines += [*_typed(["adopt", MODEL]), ""]
        _flip_last_bit(folder / SHARD)
        lines += [*_typed(["adopt", MODEL]), "", *_typed(["verify", MODEL])]
    return "\n".join(lines).replace(str(cache), "/data/cache") + "\n"


def _leave_as_a_server(tree: Path, folder: Path) -> None:
    """A real folder, without what only this program adds, and with a marker that names a folder of the host."""
    shutil.copytree(tree, folder)
    (folder / RECORD_NAME).unlink()
    shutil.rmtree(folder / LICENSES_FOLDER, ignore_errors=True)
    marker = json.loads((folder / MARKER_NAME).read_bytes())
    marker["source_dir"] = "/root/.cache/huggingface/hub/models--OpenVDN--vdn-minimax-h3/snapshots/6d052b3e"
    (folder / MARKER_NAME).write_text(json.dumps(marker, indent=2, sort_keys=True))


def _flip_last_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def _typed(args: Sequence[str]) -> list[str]:
    status, printed = _type(args)
    ended = [f"[status {status}]"] if status else []
    return [f"$ {shlex.join(['overlay', *args])}", *printed, *ended]


def _type(args: Sequence[str]) -> tuple[int, list[str]]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = run(args)
    return status, [line.rstrip() for line in (out.getvalue() + err.getvalue()).splitlines()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(transcript(Path(folder)), end="")
