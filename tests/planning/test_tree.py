"""The tree held against what a server needs, with the files on the Hub and not on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.contracts import MODEL, make_hub
from support.hubs import client_of

from overlay.demo.registry import write_registry
from overlay.errors import BrokenInput
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.planning.recipes import make_plan
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 86000\n"


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("tokenizer/merges.txt", POINTER, "lfs-pointer"),
        ("tokenizer/tokenizer.json", "", "bad-json"),
        ("tokenizer/tokenizer.json", "x" * 2**20, "bad-json"),
        ("tokenizer/tokenizer.json", "x" * (2**20 + 1), None),
        ("tokenizer/merges.txt", "x" * 1024, None),
    ],
)
def test_small_files_are_looked_at_and_larger_ones_are_not_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str, code: str | None
) -> None:
    """A plan is made of what costs little; what is over the bound of its kind stays where it is until it is built."""
    hub = make_hub(tmp_path)
    (hub.needs_folder / path).write_text(text)
    registry = tmp_path / "registry.yaml"
    write_registry(registry, hub)
    resolution = resolve(MODEL, load_registry(registry, environ={}, cwd=tmp_path))
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        memo = DigestMemo(None, write=False)
        inventory = take_inventory(resolution, hub=None, offline=False, memo=memo, allow_floating=False)
        if code is None:
            assert make_plan(inventory).outputs
            assert server.asked("GET", f"*/{path}") == []
        else:
            with pytest.raises(BrokenInput) as caught:
                make_plan(inventory)
            assert caught.value.code == code
            assert path in caught.value.message
        assert server.asked("GET", "*/text_encoder/model-*.safetensors") == []


def test_a_plan_without_a_connection_leaves_absent_files_to_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which names all of them at once; that a carried file cannot be looked at now is no fault of it."""
    hub = make_hub(tmp_path)
    registry = tmp_path / "registry.yaml"
    write_registry(registry, hub)
    resolution = resolve(MODEL, load_registry(registry, environ={}, cwd=tmp_path))
    memo = DigestMemo(None, write=False)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        inventory = take_inventory(resolution, hub=None, offline=False, memo=memo, allow_floating=False)
        inventory.source.fetch(inventory.source.paths())
        make_plan(inventory)
        [brought] = (tmp_path / "hf/hub").glob("models--*MiniMax-H3/snapshots/*/tokenizer/tokenizer_config.json")
        brought.resolve().unlink()
        offline = take_inventory(resolution, hub=None, offline=True, memo=memo, allow_floating=False)
        assert make_plan(offline).outputs
