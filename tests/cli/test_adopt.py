"""`overlay adopt`: what it prints, what leads to it, and that the page shows it so."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from adopt_transcript import transcript
from support.demo_hub import MODEL, World, make_built_world
from support.server_trees import flip, place_server_tree, server_tree

from overlay.cli._main import run

if TYPE_CHECKING:
    from collections.abc import Callable

    Document = Callable[..., dict[str, Any]]

PAGE = Path(__file__).parents[2] / "docs/how-to/adopt-a-tree.md"
SHARD = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path, str]:
    """A world, what a server builds in it, and the name of the model's location."""
    world = make_built_world(tmp_path_factory.mktemp("made"))
    [location] = (world.cache / "materialized_models").iterdir()
    return world, server_tree(world.hub, world.root / "server"), location.name


@pytest.fixture
def folder(made: tuple[World, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's folder at the location of a cache root that is in force."""
    world, tree, location = made
    world.put_in_force(monkeypatch, tmp_path / "cache")
    return place_server_tree(tree, tmp_path / "cache", location)


def test_it_says_what_it_compared_and_took(folder: Path, document: Document) -> None:
    """The dry run counts what the run then does; a second one finds nothing to do."""
    planned = document("adopt-dry-run", "adopt", MODEL, "--dry-run")
    assert planned["folder"] == planned["location"] == str(folder)
    assert not planned["present"]
    compared = {file["path"]: (file["compared"], file["how"]) for file in planned["files"]}
    assert compared[SHARD] == ("computed", "hardlink")
    assert compared["text_encoder/config.json"] == ("digest", "copy")
    assert compared["model_index.json"] == ("bytes", None)
    assert {how for kind, how in compared.values() if kind == "added"} <= {None}

    done = document("adopt", "adopt", MODEL)
    assert (done["result"], done["location"]) == ("adopted", str(folder))
    assert {name: done[name] for name in planned if name.startswith("bytes_")} == {
        name: value for name, value in planned.items() if name.startswith("bytes_")
    }
    assert {"path": SHARD, "how": "hardlink"} in done["files"]
    assert document("adopt", "adopt", MODEL)["result"] == "present"
    assert document("adopt-dry-run", "adopt", MODEL, "--dry-run")["present"]


def test_what_finds_the_folder_leads_to_it(
    folder: Path, document: Document, capsys: pytest.CaptureFixture[str]
) -> None:
    """`resolve`, `path` and `prewarm` name the command that is next, and it is one that works."""
    assert document("resolve", "resolve", MODEL)["next"] == f"overlay adopt {MODEL}"
    assert run(["path", MODEL]) == 3
    assert f"hint: overlay adopt {MODEL}\n" in capsys.readouterr().err
    assert run(["prewarm", MODEL]) == 4
    assert f"hint: overlay adopt {folder}\n" in capsys.readouterr().err
    assert run(["adopt", str(folder)]) == 0
    assert document("resolve", "resolve", MODEL)["state"] == "present"


def test_without_a_folder_nothing_leads_to_it(folder: Path, document: Document) -> None:
    """An absent model is built."""
    shutil.rmtree(folder)
    assert document("resolve", "resolve", MODEL)["next"] == f"overlay prewarm {MODEL}"


def test_a_refusal_is_a_failed_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, the file and the tensor, as data too."""
    flip(folder / SHARD, -1)
    root = folder.parents[1]
    assert run(["adopt", MODEL, "--cache-root", str(root), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "file-differs"
    assert error["hint"].endswith(f"move it away, then build the model: overlay prewarm {MODEL} --cache-root {root}")
    assert error["data"]["where"] == str(folder / SHARD)
    [tensor] = error["data"]["tensors"]
    assert tensor in error["message"]


def test_the_text_of_a_dry_run_lists_files_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-v: how each is compared, and how it is taken."""
    assert run(["adopt", MODEL, "--dry-run", "-v"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"computed +hardlink +[\d.]+ MB +{re.escape(SHARD)}\n", out)
    assert run(["adopt", MODEL, "-q"]) == 0
    assert run(["adopt", MODEL, "--dry-run"]) == 0
    assert "nothing to adopt" in capsys.readouterr().out


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    """Every line in order; seconds are the host's."""
    [shown] = re.findall(r"^```console\n(\$ overlay path .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert without_seconds(transcript(tmp_path)) == without_seconds(shown)


def without_seconds(text: str) -> str:
    """The text without how long it took."""
    return re.sub(r"in [\d.]+ (s|ms)\b", "in …", text)
