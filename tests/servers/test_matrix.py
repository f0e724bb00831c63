"""Released servers on caches that this program filled alone: each takes the warmed directory, and asks for no byte."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import server_matrix
from server_matrix import MODEL, MODES, NO_ROW, RELEASES, Mode, Outcome, try_mode, world, write_source_hub
from support.models import options
from support.servers import unpacked

from overlay.consumers import sglang
from overlay.demo.checkpoint import OVERLAY_REPO
from overlay.demo.registry import write_registry
from overlay.demo.revisions import bump_overlay_readme
from overlay.materialization.materialize import materialize
from overlay.registry.variables import SGLANG_REGISTRY

if TYPE_CHECKING:
    from overlay.demo.checkpoint import HubFolder

PAGE = Path(__file__).parents[2] / "docs/reference/sglang.md"

# These read which pipeline a folder is for from the folder itself, also where they take it for a source.
EXCEPTIONS = dict.fromkeys(("0.5.10", "0.5.12"), ("source folder, `--with-override`",))


def cells() -> dict[tuple[str, str], str]:
    """The committed table: what it says, by release and by the title of a line."""
    section = PAGE.read_text().partition(server_matrix.BEGIN)[2].partition(server_matrix.END)[0]
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.split("\n") if line]
    return {(version, line[0]): cell for line in lines for version, cell in zip(head[1:], line[1:], strict=True)}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """The repos of VDN-H3, tiny; what the source was at before a rename is a commit of its own."""
    return write_source_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def built(hub: HubFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the model, built once: a cache that starts with them is warmed by links, without a fuse."""
    root = tmp_path_factory.mktemp("built") / "cache"
    materialize(MODEL, options(hub, root))
    for name in ("materialized_models", ".overlay/trees", ".overlay/digests", ".overlay/verified"):
        shutil.rmtree(root / name, ignore_errors=True)
    return root


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.title)
@pytest.mark.parametrize("version", RELEASES)
def test_the_server_takes_what_was_warmed(
    version: str, mode: Mode, hub: HubFolder, built: Path, tmp_path: Path
) -> None:
    """Offline, and online with the source's main renamed: the same directory, nothing built, not a byte of a file."""
    with world(tmp_path / "world", hub) as here:
        shutil.copytree(built, here.root / "cache")
        row = try_mode(here, mode, version, unpacked("sglang", version))
    for connection, outcome in (("offline", row.offline), ("online", row.online)):
        assert cells()[version, f"{mode.title}, {connection}"] == str(outcome or NO_ROW), outcome
        if outcome is not None:
            assert outcome.payload == 0
    if row.offline is not None and mode.title not in EXCEPTIONS.get(version, ()):
        assert row.offline == Outcome(is_hit=True, requests=0, payload=0)
        assert row.online is not None
        assert row.online.is_hit
        assert row.online.requests == 0 or mode.model == OVERLAY_REPO


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [version for version in RELEASES if version >= "0.5.20"])
def test_a_server_does_not_find_what_is_built_at_another_pin_than_its_table_has(
    version: str, hub: HubFolder, built: Path, tmp_path: Path
) -> None:
    """Offline it lacks its table's overlay, online it fetches that and builds; told the pins, it finds the tree."""
    other = bump_overlay_readme(server_matrix.copied_hub(hub, tmp_path / "hub"))
    flags = ("--for", f"sglang=={version}")
    with world(tmp_path / "world", other) as here:
        shutil.copytree(built, here.root / "cache")
        write_registry(here.root / "registry.yaml", other)
        here.overlay("prewarm", MODEL, *flags, "-q")
        path = here.overlay("path", MODEL, *flags)
        here.overlay("prewarm", MODEL, *flags, "--with-override", "--stage-source", "-q")
        # Without an override `env` refuses, so it is taken from what it prints with one.
        told = json.loads(here.overlay("env", MODEL, *flags, "--with-override", "--json"))["env"]
        variables = {name: value for name, value in told.items() if name != SGLANG_REGISTRY}
        release = unpacked("sglang", version)
        missed = server_matrix.start(here, release, MODEL, path, variables)
        built = server_matrix.start(here, release, MODEL, path, {**variables, "HF_HUB_OFFLINE": "0"})
        row = try_mode(here, Mode("by name", override=True), version, release)
    assert not missed.is_hit
    assert missed.requests == 0
    assert not built.is_hit
    assert built.payload > 0
    assert "this script must not run" in built.text
    assert row.offline == row.online == Outcome(is_hit=True, requests=0, payload=0)


@pytest.mark.no_torch
def test_the_committed_table_has_every_release_and_every_mode() -> None:
    """And says of each what the tool can say; what it says is held against the servers in the slow tests."""
    found = cells()
    lines = [f"{mode.title}, {connection}" for mode in MODES for connection in ("offline", "online")]
    assert list(found) == [(version, line) for line in lines for version in RELEASES]
    for (version, line), cell in found.items():
        mode = next(mode for mode in MODES if line.rpartition(", ")[0] == mode.title)
        has_no_row = mode.needs_row and MODEL not in sglang.built_in(server_matrix.number_of(version))
        assert (cell == NO_ROW) == has_no_row
        assert has_no_row or re.fullmatch(r"yes(, \d+ requests?)?|no", cell)
        assert has_no_row or cell.startswith("yes") == (mode.title not in EXCEPTIONS.get(version, ()))
