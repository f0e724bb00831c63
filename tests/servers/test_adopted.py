"""A tree that a released sglang built by itself, with an overlay's own script, and its adoption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from server_child import ask
from support.checkpoints import copy_hub
from support.hubs import client_of
from support.models import VDN, vdn_registry
from support.scripted import PATH, VDN_SCRIPT
from support.server_trees import flip
from support.servers import unpacked

from overlay.consumers.server import Server, parse_server
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO
from overlay.errors import CheckFailed
from overlay.materialization.adoption.adopt import adopt
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# As server_child.py, but with what the script computes with.
CHILD = """
import sys, server_child
server_child.STAND_INS = tuple(name for name in server_child.STAND_INS if name not in ("torch", "safetensors"))
server_child.main()
"""
# The first release that hashes a fingerprint and links everything, the one before ``source_revision``, the newest.
RELEASES = ("0.5.12", "0.5.21", "0.5.23")


def serve(release: Path, **variables: str) -> Path:
    """The folder that a server with an empty cache builds of the model."""
    tools = os.path.dirname(sys.modules["server_child"].__file__ or "")  # noqa: PTH120 - for a variable
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(release)],
        input=json.dumps([["serve", VDN]]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables, "PYTHONPATH": tools},
    )
    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)
    assert "is" in answer, done.stderr
    return type(release)(answer["is"])


@pytest.mark.parametrize("version", RELEASES)
def test_what_a_released_server_built_is_adopted(
    version: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused with one bit flipped, else taken without a weight byte written; and the server then takes our link."""
    release = unpacked("sglang", version)
    hub = copy_hub(tmp_path_factory)
    (hub.overlay_folder / PATH).write_text(VDN_SCRIPT)
    branches = {SOURCE_REPO: hub.source, OVERLAY_REPO: hub.overlay, NEEDS_REPO: NEEDS_REVISION}
    cache, root = tmp_path / "hf/hub", tmp_path / "root"
    told = {VDN: {"overlay_repo_id": OVERLAY_REPO, "overlay_revision": hub.overlay}}
    with HubServer(hub.root, branches=branches) as server, client_of(server, monkeypatch, cache):
        variables: dict[str, Any] = {
            "HF_ENDPOINT": server.url,
            "HF_HUB_CACHE": str(cache),
            "SGLANG_DIFFUSION_CACHE_ROOT": str(root),
            "SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY": json.dumps(told),
        }
        folder = serve(release, **variables)
        assert folder.parent == root / "materialized_models"
        weights = {path.relative_to(folder): path.stat().st_ino for path in folder.rglob("*.safetensors")}
        named: Server = parse_server(f"sglang=={version}")
        chosen = Options(registry=vdn_registry(tmp_path, hub), cache_root=root, server=named)

        shard = next(path for path in folder.glob("transformer/diffusion_pytorch_model-*.safetensors"))
        flip(shard, -1)
        with pytest.raises(CheckFailed) as caught:
            adopt(VDN, chosen)
        assert len(caught.value.data["tensors"]) == 1
        flip(shard, -1)

        done = adopt(VDN, chosen)
        assert (done.result, done.location, done.counters.written) == ("adopted", folder, 0)
        assert {path: (done.path / path).stat().st_ino for path in weights} == weights
        assert verify(folder, "sha256").ok
        assert (done.path / RECORD_NAME).is_file()
        before = folder.readlink()
        [again] = ask(release, [["serve", VDN]], **variables)
    assert again == {"is": str(folder)}
    assert folder.readlink() == before
