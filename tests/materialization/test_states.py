"""Present, stale, damaged, absent: what is found at a location, and how a run leaves it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub
from support.models import STAGE_B, VDN, options, vdn_registry
from support.published_rule import files_of

from overlay.demo.revisions import bump_readme
from overlay.errors import CannotWrite
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options, open_cache
from overlay.materialization.resolve import resolve
from overlay.materialization.state import find_state
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify
from overlay.planning.rules import DEFAULT_RULE
from overlay.registry.entries import ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

    from overlay.materialization.state import State

SHARD = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
CARRIED = "audio_vae/diffusion_pytorch_model.safetensors"


def state_of(built: Built, **choices: Any) -> State:
    return resolve(VDN, built.options(**choices)).state


def edit_record(tree: Path, edit: Callable[[Any], None]) -> None:
    path = tree / RECORD_NAME
    document = json.loads(path.read_bytes())
    edit(document)
    path.write_text(json.dumps(document))


def truncate(path: Path, by: int = 5) -> None:
    os.truncate(path, path.stat().st_size - by)


def drop_first_output(document: Any) -> None:
    del document["outputs"][0]


def test_present_after_a_build_and_a_run_does_nothing(built: Built) -> None:
    """A hit: nothing is read, written or linked, and every path is that of the first run."""
    state = state_of(built)
    assert (state.name, state.tree, state.location, state.why) == ("present", built.tree, built.location, "")
    before = files_of(built.root)
    again = materialize(VDN, built.options())
    assert (again.result, again.path, again.location) == ("present", built.tree, built.location)
    assert again.counters == Counters()
    assert files_of(built.root) == before


def test_absent_in_an_empty_root_and_nothing_is_made(shared_build: Built, tmp_path: Path) -> None:
    """Asking writes nothing; the location is known from the overlay's files."""
    state = resolve(VDN, options(shared_build.hub, tmp_path / "root")).state
    assert (state.name, state.tree) == ("absent", None)
    assert state.location is not None
    assert state.location.name == shared_build.location.name
    assert not (tmp_path / "root").exists()


PINS = ("kevin-mi/VDN-H3-overlay", "7de18275dddfe59da36a234e222bcdd274963bc3")
SOURCE = "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14"
TOLD = {
    "as it was built": (ServerSpec(*PINS, None), "present"),
    "the same release": (ServerSpec(*PINS, None, version=(0, 5, 23)), "present"),
    "a branch": (ServerSpec(PINS[0], "main", None), "stale"),
    "the commit of the source": (ServerSpec(*PINS, SOURCE), "stale"),
    "which this release leaves out": (ServerSpec(*PINS, SOURCE, (0, 5, 21)), "present"),
    "a release without fingerprints": (ServerSpec(*PINS, None, version=(0, 5, 10)), "stale"),
    "another overlay": (ServerSpec("acme/overlay", PINS[1], None), "stale"),
}


@pytest.mark.parametrize(("told", "state"), TOLD.values(), ids=TOLD)
def test_the_key_of_another_server_is_none_of_its_own(shared_build: Built, told: ServerSpec, state: str) -> None:
    """Where the overlay's files are not at hand the marker says what they said; the rest is what the server is told."""
    resolution = resolve(VDN, shared_build.options()).resolution
    entry = replace(resolution.entry, overlay_fingerprint=None, server=told)
    cache = open_cache(shared_build.options(), create=False)
    found = find_state(replace(resolution, entry=entry), cache, DEFAULT_RULE)
    assert (found.name, found.location) == (state, shared_build.location)
    assert ("told other pins" in found.why) == (state == "stale")


def test_unknown_where_nothing_tells_the_location(shared_build: Built, tmp_path: Path) -> None:
    """Without the overlay's files and without its fingerprint in the registry the directory's name is not known."""
    registry = vdn_registry(tmp_path, replace(shared_build.hub, overlay="f" * 40))
    (tmp_path / "empty").mkdir()
    state = resolve(VDN, Options(registry=registry, hub=tmp_path / "empty", cache_root=tmp_path / "root")).state
    assert (state.name, state.location) == ("unknown", None)
    assert "kevin-mi/VDN-H3-overlay" in state.why


@pytest.mark.parametrize(
    ("damage", "why", "result"),
    [
        pytest.param(lambda b: (b.tree / SHARD).unlink(), SHARD, "reused", id="shard-deleted"),
        pytest.param(lambda b: truncate(b.tree / SHARD), SHARD, "built", id="shard-truncated"),
        pytest.param(lambda b: os.truncate(b.tree / SHARD, 0), SHARD, "built", id="shard-emptied"),
        pytest.param(lambda b: truncate(b.tree / CARRIED), CARRIED, "built", id="carried-truncated"),
        pytest.param(lambda b: (b.tree / CARRIED).unlink(), CARRIED, "reused", id="carried-deleted"),
        pytest.param(lambda b: (b.tree / "model_index.json").unlink(), "model_index.json", "reused", id="json-deleted"),
        pytest.param(lambda b: (b.tree / "extra.txt").write_text("?"), "extra.txt", "reused", id="extra-file"),
        pytest.param(lambda b: (b.tree / RECORD_NAME).unlink(), "has no record", "reused", id="record-deleted"),
        pytest.param(lambda b: (b.tree / RECORD_NAME).write_text("{"), "valid JSON", "reused", id="record-broken"),
        pytest.param(
            lambda b: edit_record(b.tree, lambda d: d.update(schema_version=99)), "schema", "reused", id="record-newer"
        ),
        pytest.param(lambda b: edit_record(b.tree, drop_first_output), "named by", "reused", id="record-edited"),
        pytest.param(
            lambda b: edit_record(b.tree, lambda d: d["inputs"][0].update(digest="sha256:0")),
            "named by",
            "reused",
            id="input-edited",
        ),
        pytest.param(lambda b: shutil.rmtree(b.tree), "leads nowhere", "reused", id="dangling-link"),
        pytest.param(lambda b: shutil.rmtree(b.tree / "transformer"), "transformer/", "reused", id="folder-deleted"),
    ],
)
def test_damage_is_seen_without_reading_weights_and_a_run_repairs_it(
    built: Built, damage: Callable[[Built], Any], why: str, result: str
) -> None:
    """Whatever is missing, short, too much or unreadable: ``damaged``, then a whole tree of the same name again."""
    name, before = built.tree.name, files_of(built.tree)
    damage(built)
    state = state_of(built)
    assert state.name == "damaged"
    assert why in state.why
    done = materialize(VDN, built.options())
    assert (done.result, done.path) == (result, built.root / ".overlay/trees" / name)
    assert state_of(built).name == "present"
    assert verify(built.location).ok
    after = files_of(built.tree)
    del before[RECORD_NAME], after[RECORD_NAME]
    assert after == before
    assert list((built.root / ".overlay/staging").glob("*")) == []


def test_a_server_that_has_the_damaged_tree_open_keeps_its_files(built: Built) -> None:
    """A damaged tree is replaced, never repaired in place."""
    config = built.tree / "transformer/config.json"
    (built.tree / SHARD).unlink()
    with config.open("rb") as opened:
        before = opened.read()
        materialize(VDN, built.options())
        opened.seek(0)
        assert opened.read() == before
        assert os.fstat(opened.fileno()).st_nlink == 0


@pytest.mark.parametrize(
    ("choices", "why"),
    [({"rule": "openvdn"}, "rule fp32-once, asked for openvdn"), ({"stage": STAGE_B}, "another recipe")],
    ids=["rule", "recipe"],
)
def test_stale_where_something_else_is_asked_for(built: Built, choices: dict[str, Any], why: str) -> None:
    """Another rule or stage has the same location: it is stale for one and present for the other."""
    state = state_of(built, **choices)
    assert (state.name, state.tree) == ("stale", built.tree)
    assert why in state.why
    done = materialize(VDN, built.options(**choices))
    assert done.result == "built"
    assert state_of(built, **choices).name == "present"
    assert state_of(built).name == "stale"


def test_stale_where_a_pin_moved(built: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The record names the former commit of the source."""
    bumped = bump_readme(copy_hub(tmp_path_factory))
    state = resolve(VDN, options(bumped, built.root)).state
    assert (state.name, state.tree) == ("stale", built.tree)
    assert built.hub.source[:12] in state.why
    assert bumped.source[:12] in state.why


def test_stale_where_other_components_are_carried(built: Built, tmp_path: Path) -> None:
    """The same repos at the same commits, one component more: not what is there."""
    registry = built.options().registry
    assert registry is not None
    more = tmp_path / "more.yaml"
    more.write_text(registry.read_text().replace("tokenizer, processor]", "tokenizer, processor, vocoder]"))
    state = state_of(built, registry=more)
    assert state.name == "stale"
    assert "components" in state.why


def test_what_a_server_built_itself_is_stale_and_never_touched(built: Built) -> None:
    """A real folder at the location: nothing is known of it. A run says how to move it away, before it builds."""
    location, tree = built.location, built.tree
    location.unlink()
    shutil.copytree(tree, location)
    shutil.rmtree(built.root / ".overlay/objects")
    shutil.rmtree(tree)
    (location / RECORD_NAME).unlink()
    before = files_of(location)
    state = state_of(built)
    assert (state.name, state.tree) == ("stale", None)
    assert "not built by this program" in state.why
    with pytest.raises(CannotWrite, match="a real folder is in the way") as caught:
        materialize(VDN, built.options())
    assert caught.value.code == "location-taken"
    assert str(caught.value.hint) == f"overlay adopt {location}"
    assert files_of(location) == before
    assert not list((built.root / ".overlay").glob("objects/*/*/*"))


@pytest.mark.parametrize("target", ["/nowhere", "../elsewhere", "../.overlay/trees/../../x"])
def test_a_link_of_somebody_else_is_not_followed_nor_replaced(built: Built, target: str) -> None:
    """Only links of this program's own form are read as locations."""
    location = built.location
    location.unlink()
    location.symlink_to(target)
    assert state_of(built).name in ("stale", "damaged")
    with pytest.raises(CannotWrite, match="in the way"):
        materialize(VDN, built.options())
    assert str(location.readlink()) == target


@pytest.mark.parametrize(
    "document", ["[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "outputs": [{"path": "../x"}]}', "\ud800"]
)
def test_a_hostile_record_is_damage_and_no_crash(built: Built, document: str) -> None:
    """Whatever stands in the record, the state is told."""
    (built.tree / RECORD_NAME).write_bytes(document.encode(errors="surrogatepass"))
    assert state_of(built).name == "damaged"


@pytest.mark.parametrize(
    "pins", [None, [], {"source": []}, {"source": 1, "overlay": 2, "needs": [3]}, {"needs": 7}, "x"]
)
def test_hostile_pins_in_a_record_are_stale_and_no_crash(built: Built, pins: Any) -> None:
    """A record whose pins are of another kind names no pin of today."""
    edit_record(built.tree, lambda document: document.update(pins=pins))
    assert state_of(built).name == "stale"


def test_an_entry_that_floats_is_present_at_any_commit(built: Built, tmp_path: Path) -> None:
    """Nobody has established a commit, so any agrees; the run still looks what it would be today."""
    registry = built.options().registry
    assert registry is not None
    text = registry.read_text().replace(f"source: {{revision: {built.hub.source}}}", 'source: {floating: "no release"}')
    floating = tmp_path / "floating.yaml"
    floating.write_text(text)
    assert state_of(built, registry=floating).name == "present"


def test_a_model_of_another_rule_is_found_by_that_rule(built: Built) -> None:
    """Built by openvdn: present for who asks for it, stale for who does not, with the rule named."""
    done = materialize(VDN, built.options(rule="openvdn"))
    asked = resolve(VDN, built.options(rule="openvdn")).state
    assert (asked.name, asked.tree, asked.rule) == ("present", done.path, "")
    other = resolve(VDN, built.options()).state
    assert (other.name, other.rule) == ("stale", "openvdn")


def test_a_source_folder_is_present_after_its_build_until_a_file_changes(built: Built, tmp_path: Path) -> None:
    """Named again, the folder gives what was built from it; named by the registry's key, that is of other pins."""
    here = tmp_path / "vdn-minimax-h3"
    shutil.copytree(built.hub.source_folder, here)
    choices = built.options(cache_root=tmp_path / "cache")
    made = materialize(str(here), choices)
    state = resolve(str(here), choices).state
    assert (state.name, state.tree) == ("present", made.path)
    assert resolve(VDN, choices).state.name == "stale"
    with (here / "h3-base" / "vae" / "config.json").open("a") as config:
        config.write("\n")
    state = resolve(str(here), choices).state
    assert state.name == "stale"
    assert state.why == f"built from another {here}/h3-base/vae/config.json"
    (here / "h3-base" / "vae" / "config.json").unlink()
    assert resolve(str(here), choices).state.name == "stale"


def test_a_source_folder_is_told_from_the_commit_that_was_built(built: Built, tmp_path: Path) -> None:
    """What lies at the location was made of a commit, and a folder may hold anything."""
    here = tmp_path / "vdn-minimax-h3"
    here.mkdir()
    assert "asked for a folder" in resolve(str(here), built.options()).state.why
