"""What a check of the released checkpoint fetches: under 10 MB, and no byte of a weight."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import wide_hub
from support.contracts import MODEL
from support.hubs import client_of
from support.paper_release import payload_sent, write_paper_hub

from overlay.cli._main import run
from overlay.demo.checkpoint import NEEDS_REPO
from overlay.demo.registry import write_registry
from overlay.demo.revisions import bump_rename

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

MOST = 10_000_000


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubFolder:
    """The released sizes, of headers alone."""
    return write_paper_hub(tmp_path / "hub", monkeypatch)


@pytest.fixture
def server(paper: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub that has it, and the client turned there."""
    with HubServer(paper.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield server


def checked(capsys: pytest.CaptureFixture[str], folder: Path, hub: HubFolder, *args: str) -> Any:
    """The document of a check of this hub's revisions, which ends well."""
    registry = folder / f"{hub.source[:8]}-{hub.overlay[:8]}.yaml"
    write_registry(registry, hub)
    assert run(["check", "--json", "--registry", str(registry), "--cache-root", str(folder / "root"), *args]) == 0
    return json.loads(capsys.readouterr().out)


def sent(server: HubServer) -> int:
    return sum(request.sent for request in server.asked())


def test_the_released_size_is_checked_for_under_ten_megabytes(
    paper: HubFolder, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """140 GB are checked by their headers: 14 shards, 571 pairs; what is said to be fetched is what the Hub sent."""
    document = checked(capsys, tmp_path, paper)
    [model] = document["models"]

    assert model["compared"] == {"pairs": 571, "specs": 2, "shards": 14}
    assert 1_000_000 < document["bytes_fetched"] < MOST
    assert document["bytes_fetched"] == sent(server)
    assert payload_sent(server) == 0


def test_a_lock_of_the_released_size_is_held_for_under_ten_megabytes(
    paper: HubFolder, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fact of it: also the headers of the text encoder, which nothing else asks for; offline for nothing."""
    registry = tmp_path / "registry.yaml"
    write_registry(registry, paper)
    options = ["--registry", str(registry), "--cache-root", str(tmp_path / "root")]
    assert run(["lock", "-q", *options]) == 0
    capsys.readouterr()
    shutil.rmtree(tmp_path / "hf")
    server.forget()
    assert run(["check", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes_fetched"] == sent(server) < MOST
    assert payload_sent(server) == 0

    text = registry.with_suffix(".lock").read_text()
    shard = next(line for line in text.splitlines() if "text_encoder/" in line and '"tensors": ' in line)
    registry.with_suffix(".lock").write_text(text.replace(shard, re.sub(r'"tensors": \d+', '"tensors": 7', shard)))
    assert run(["check", *options]) == 1
    assert "text_encoder/" in next(line for line in capsys.readouterr().out.splitlines() if "lock-differs" in line)

    registry.with_suffix(".lock").write_text(text)
    shutil.rmtree(tmp_path / "hf")
    server.forget()
    assert run(["check", "--offline", *options]) == 0
    assert sent(server) == 0


def test_a_change_costs_no_second_look_at_what_stayed(
    paper: HubFolder, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides of a rename are compared for little more than one of them, and the change costs nothing."""
    document = checked(capsys, tmp_path, paper)
    alone = document["bytes_fetched"]
    before = next(tmp_path.glob("*.yaml"))
    server.forget()
    document = checked(capsys, tmp_path, bump_rename(paper), "--against", str(before))
    [model] = document["models"]

    assert model["cost"]["rebuilt"] == []
    assert {model["cost"][name] for name in ("downloaded", "read", "written", "linked")} == {0}
    assert document["bytes_fetched"] == sent(server) < 1.2 * alone
    assert payload_sent(server) == 0


def test_headers_are_asked_for_several_at_once(
    paper: HubFolder, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a Hub whose every answer takes its time, several of sixty requests are under way together."""
    server.fault(path="*", delay=0.1)
    checked(capsys, tmp_path, paper)

    assert len(server.asked()) > 50
    assert server.most_at_once() >= 5


def test_equal_parts_of_two_revisions_are_proven_by_listings(
    paper: HubFolder, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """66 GB of text encoder at two pins are told to be the same for two listings; a missing folder is told, too."""
    other = "939557dc319dd91227e30195a763f272ba7f8765"
    (paper.root / NEEDS_REPO / other).symlink_to(paper.needs_folder)
    same = ["check", "--json", "--same", NEEDS_REPO, "--revision", paper.needs_folder.name, other]
    assert run([*same, "text_encoder", "tokenizer"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["equal"]
    assert document["paths"][0]["size"] > 60e9
    assert document["bytes_fetched"] == sent(server) < 50_000
    assert {request.path.split("/")[1] for request in server.asked()} == {"api"}
    assert run([*same, "vision_encoder"]) == 1


def test_weights_behind_the_headers_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With real weights, twenty times of what a check may fetch, none of them is sent."""
    hub = wide_hub(tmp_path / "hub", blocks=1)
    size = sum(path.stat().st_size for path in hub.source_folder.rglob("*.safetensors"))
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        document = checked(capsys, tmp_path, hub)
        assert document["models"][0]["model"] == MODEL
        assert document["bytes_fetched"] == sent(server) < MOST < size / 20
        assert server.payload() == payload_sent(server) == 0
