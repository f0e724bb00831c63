"""Locking the released checkpoint: megabytes for 140 GB, and enough for a check without a connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.demo_hub import MODEL
from support.hubs import client_of
from support.paper_release import payload_sent, write_paper_hub

from overlay.cli._main import run
from overlay.demo.registry import write_registry
from overlay.registry.lock import read_lock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

MOST = 10_000_000


def test_the_released_size_is_locked_for_under_ten_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server sent is what the output says, and no byte of it is a weight; then a check asks for nothing."""
    hub = write_paper_hub(tmp_path / "hub", monkeypatch)
    write_registry(tmp_path / "registry.yaml", hub)
    places = ["--registry", str(tmp_path / "registry.yaml"), "--cache-root", str(tmp_path / "root"), "--json"]
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        assert run(["lock", *places]) == 0
        document = json.loads(capsys.readouterr().out)
        sent = sum(request.sent for request in server.asked())

        assert 1_000_000 < document["bytes_fetched"] == sent < MOST
        assert payload_sent(server) == 0
        lock = read_lock(tmp_path / "registry.lock")
        assert lock is not None
        assert [adapter.pairs for adapter in lock.models[MODEL].adapters] == [208, 363]
        assert (tmp_path / "registry.lock").stat().st_size < 50_000
        server.forget()
    with client_of("http://127.0.0.1:9", monkeypatch, tmp_path / "another/hub"):
        assert run(["check", *places, "--offline"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]

    assert model["status"] == "passed"
    assert model["compared"] == {"pairs": 571, "specs": 2, "shards": 14}
