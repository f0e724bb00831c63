"""The second action key: what stays where an adapter changes elsewhere, and what happens where an entry is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import copy_hub
from support.hubs import client_of
from support.models import STAGE, VDN, options
from support.published_rule import files_of

from overlay.cache import Cache, store
from overlay.cache.layout import CacheRoot
from overlay.cache.tensors import TensorDigests
from overlay.demo.revisions import bump_alpha, bump_readme, bump_turbo_block
from overlay.errors import BrokenInput, CannotWrite, InvalidUsage
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.header import read_header
from overlay.formats.layout import canonical_layout
from overlay.materialization import learning
from overlay.materialization.lookup import Lookup
from overlay.materialization.materialize import Materialization, materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.repair import repair
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify
from overlay.planning.outputs import Fused, Input, OutputTensor, Range, SafetensorsFile, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder
    from overlay.materialization.survey import Work

SHARDS = [f"transformer/diffusion_pytorch_model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
TURBO, DEFAULT = (f"{STAGE}/adapters/{name}/adapter_model.safetensors" for name in ("turbo", "default"))
SAME_INPUTS, SAME_FACTORS = "same inputs", "same base and factors"
CHANGED = f"{SAME_FACTORS}: {TURBO} changed elsewhere"


class Phases:
    """Notes which stretches of work there were."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    @contextmanager
    def __call__(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self.totals[label] = self.totals.get(label, 0) + total
        yield lambda _nbytes: None


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """A hub folder to bump, equal to the one that ``built`` was made of."""
    return copy_hub(tmp_path_factory)


def run(hub: HubFolder, root: Path, /, **choices: Any) -> Materialization:
    return materialize(VDN, options(hub, root, **choices))


def planned(hub: HubFolder, root: Path) -> Work:
    return plan(VDN, options(hub, root))


def reasons(done: Materialization) -> dict[str, str]:
    """Why each fused shard was reused, of those that were."""
    assert done.path is not None
    report = json.loads((done.path / RECORD_NAME).read_bytes())["run"]
    assert report["counters"] == asdict(done.counters)
    return {item["path"]: item["why"] for item in report["reused"] if item["path"] in SHARDS}


def at_most(work: Work) -> list[str]:
    return [note for note in work.notes if note.startswith("at most")]


def dropped(done: Materialization) -> list[str]:
    """What a run says of entries that cannot be right."""
    return [note for note in done.notes if note.endswith("dropped")]


def tree(done: Materialization) -> dict[str, bytes]:
    assert done.path is not None
    return {path: data for path, data in files_of(done.path).items() if path != RECORD_NAME}


def payload(path: Path) -> int:
    return path.stat().st_size - read_header(path).data_start


def holders(hub: HubFolder, block: int) -> list[str]:
    """Shards of the output that hold a tensor of this block."""
    folder = hub.source_folder / "h3-base"
    return [
        path
        for path in SHARDS
        if any(name.startswith(f"transformer_blocks.{block}.") for name in read_header(folder / path).tensors)
    ]


def making(work: Work, paths: list[str]) -> Counters:
    """What building these shards moves: their weights, and the pairs that are folded into each of them."""
    outputs = [step.output for step in work.steps if step.output.path in paths]
    pieces = [piece for output in outputs for tensor in output.tensors for piece in tensor.pieces]
    weights = sum(piece.nbytes for piece in pieces)
    terms = [term for piece in pieces if isinstance(piece, Fused) for term in piece.terms]
    return Counters(read=weights + sum(term.a.nbytes + term.b.nbytes for term in terms), written=weights)


def entries(root: Path, *, of_factors: bool) -> dict[str, Path]:
    """By shard, the entries that lead to its object: those of its inputs, or of its factors."""
    [record] = [json.loads(path.read_bytes()) for path in (root / ".overlay/trees").glob(f"*/{RECORD_NAME}")]
    shard_of = {item["digest"]: item["path"] for item in record["outputs"] if item["path"] in SHARDS}
    found = {}
    for path in (root / ".overlay/actions").glob("*/*.json"):
        entry = json.loads(path.read_bytes())["entry"]
        if entry["digest"] in shard_of and ("adapters" in entry) == of_factors:
            found[shard_of[entry["digest"]]] = path
    assert sorted(found) == SHARDS
    return found


def learned(root: Path) -> list[Path]:
    return sorted((root / ".overlay/digests").glob("*.tensors.json"))


@pytest.mark.parametrize("block", [0, 2])
def test_a_block_of_an_adapter_costs_that_adapter_and_the_shards_of_the_block(
    built: Built, hub: HubFolder, tmp_path: Path, block: int
) -> None:
    """The other shards stay, the record says why, and every byte is that of a fresh build."""
    before = built.objects()
    bumped = bump_turbo_block(hub, block)
    touched = holders(bumped, block)
    assert 0 < len(touched) < len(SHARDS)

    done = run(bumped, built.root)

    assert done.result == "built"
    learning_it = Counters(read=payload(bumped.source_folder / TURBO))
    assert done.counters == making(planned(bumped, built.root), touched) + learning_it
    assert reasons(done) == dict.fromkeys([path for path in SHARDS if path not in touched], CHANGED)
    assert len(built.objects().items() - before.items()) == len(touched)
    assert before.items() <= built.objects().items()
    fresh = run(bumped, tmp_path / "fresh/root")
    assert tree(done) == tree(fresh)
    assert done.path is not None
    assert fresh.path is not None
    assert done.path.name == fresh.path.name


def test_a_fresh_build_reads_its_adapters_once_more_and_the_plan_counts_it(hub: HubFolder, tmp_path: Path) -> None:
    """Nothing was ever learned there, so the plan is exact and says nothing of a most."""
    work = planned(hub, tmp_path / "root")
    assert not work.is_most
    assert at_most(work) == []
    assert {source.path for source in work.unlearned} == {TURBO, DEFAULT}
    adapters = Counters(read=sum(payload(hub.source_folder / path) for path in (TURBO, DEFAULT)))
    others = [step for step in work.steps if step.output.path not in SHARDS]
    rest = Counters(
        read=sum(step.bytes_read for step in others),
        written=sum(step.payload for step in others if step.how in ("build", "copy")),
        linked=sum(step.payload for step in others if step.how in ("reflink", "hardlink")),
    )
    assert work.counters == making(work, SHARDS) + adapters + rest
    assert run(hub, tmp_path / "root").counters == work.counters
    assert len(learned(tmp_path / "root")) == 2


def test_what_was_found_by_its_factors_is_found_by_its_inputs_the_next_time(built: Built, hub: HubFolder) -> None:
    """A later commit with the same weights reads no adapter and no digest of one."""
    bumped = bump_turbo_block(hub, 1)
    run(bumped, built.root)
    for path in learned(built.root):
        path.unlink()
    again = bump_readme(bumped)
    assert planned(again, built.root).counters == Counters()
    done = run(again, built.root)
    assert (done.result, done.counters) == ("reused", Counters())
    assert reasons(done) == dict.fromkeys(SHARDS, SAME_INPUTS)
    assert learned(built.root) == []


def test_a_dry_run_counts_the_most_and_says_what_it_does_not_know(built: Built, hub: HubFolder) -> None:
    """No adapter is read and nothing is written; the note names the adapter that will tell."""
    bumped = bump_turbo_block(hub, 1)

    def times() -> dict[Path, int]:  # a folder comes to staging and goes again: links are tried there
        return {path: path.stat().st_mtime_ns for path in built.root.rglob("*") if path.name != "staging"}

    before = times()
    work = planned(bumped, built.root)
    assert times() == before
    assert work.is_most
    assert [source.path for source in work.unlearned] == [TURBO]
    assert work.counters == making(work, SHARDS) + Counters(read=payload(bumped.source_folder / TURBO))
    assert at_most(work) == [f"at most: which of 3 shards change is known once {TURBO} is read"]
    done = run(bumped, built.root)
    assert done.counters.written < work.counters.written


def test_alpha_costs_the_shards_and_no_second_look_at_the_adapters(built: Built, hub: HubFolder) -> None:
    """The tensors' digests are remembered, so the plan is exact."""
    bumped = bump_alpha(hub, 4.0, "turbo")
    work = planned(bumped, built.root)
    assert (work.is_most, work.unlearned, at_most(work)) == (False, (), [])
    assert work.counters == making(work, SHARDS)
    before = [path.stat().st_ino for path in learned(built.root)]
    done = run(bumped, built.root)
    assert done.counters == work.counters
    assert [path.stat().st_ino for path in learned(built.root)] == before
    assert reasons(done) == {}


def test_an_adapter_saved_anew_costs_a_look_at_it(built: Built, hub: HubFolder) -> None:
    """The same tensors in another order, under other metadata: nothing is written."""
    bumped = bump_readme(hub)
    path = bumped.source_folder / TURBO
    resave(path)
    done = run(bumped, built.root)
    assert (done.result, done.counters) == ("reused", Counters(read=payload(path)))
    assert reasons(done) == dict.fromkeys(SHARDS, CHANGED)


def resave(path: Path) -> None:
    """Write a safetensors file anew, its tensors the other way round."""
    header, data = read_header(path), path.read_bytes()
    entries, parts, end = {"__metadata__": {"saved": "anew"}}, [], 0
    for info in reversed(header.tensors.values()):
        start = header.offset(info.name)
        parts.append(data[start : start + info.nbytes])
        entries[info.name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": [end, end + info.nbytes]}
        end += info.nbytes
    text = json.dumps(entries).encode()
    path.unlink()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def test_only_some_components_are_found_by_their_factors_too(built: Built, hub: HubFolder) -> None:
    """``--only transformer`` builds the shard that changed; the whole run then finds all by their inputs."""
    bumped = bump_turbo_block(hub, 0)
    part = run(bumped, built.root, only=("transformer",))
    assert part.path is None
    assert part.counters == making(planned(bumped, built.root), holders(bumped, 0)) + Counters(
        read=payload(bumped.source_folder / TURBO)
    )
    whole = run(bumped, built.root)
    assert (whole.result, whole.counters) == ("reused", Counters())
    assert reasons(whole) == dict.fromkeys(SHARDS, SAME_INPUTS)


def another(path: Path, entries: dict[str, Path], shard: str) -> bytes:
    """A whole and sound entry of another shard, under this one's key."""
    other = next(found for name, found in entries.items() if name != shard)
    return entry_bytes(2, path.stem, entry_in(other.read_bytes(), 2, other.stem))


POISONS: dict[str, Callable[[Path, dict[str, Path], str], bytes]] = {
    "empty": lambda *_: b"",
    "cut": lambda path, *_: path.read_bytes()[:-20],
    "edited": lambda path, *_: path.read_bytes().replace(b'"BF16"', b'"F16"', 1),
    "another-shard": another,
    "no-tensors": lambda path, *_: entry_bytes(
        2, path.stem, {key: entry_in(path.read_bytes(), 2, path.stem)[key] for key in ("digest", "size")}
    ),
    "tensors-of-no-digest": lambda path, *_: entry_bytes(
        2, path.stem, entry_in(path.read_bytes(), 2, path.stem) | {"tensors": [{"name": 5}]}
    ),
}


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_entry_of_the_inputs_is_dropped_and_said(built: Built, hub: HubFolder, poison: str) -> None:
    """The factors still tell that the object is right: it is found by them, and the entry is made anew."""
    found = entries(built.root, of_factors=False)
    path = found[SHARDS[1]]
    sound = path.read_bytes()
    path.write_bytes(POISONS[poison](path, found, SHARDS[1]))
    done = run(bump_readme(hub), built.root)
    assert (done.result, done.counters) == ("reused", Counters())
    assert reasons(done) == {SHARDS[0]: SAME_INPUTS, SHARDS[1]: SAME_FACTORS, SHARDS[2]: SAME_INPUTS}
    [note] = dropped(done)
    assert note.startswith(f"{path}: ")
    assert path.read_bytes() == sound


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_entry_of_the_factors_is_dropped_and_said(
    built: Built, hub: HubFolder, tmp_path: Path, poison: str
) -> None:
    """Its shard is built again and the others are not; the tree is that of a fresh build."""
    found = entries(built.root, of_factors=True)
    bumped = bump_turbo_block(hub, 0)
    shard = next(path for path in SHARDS if path not in holders(bumped, 0))
    path = found[shard]
    sound = path.read_bytes()
    path.write_bytes(POISONS[poison](path, found, shard))
    done = run(bumped, built.root)
    assert set(reasons(done)) == {*SHARDS} - {shard, *holders(bumped, 0)}
    [note] = dropped(done)
    assert note.startswith(f"{path}: ")
    again = entry_in(path.read_bytes(), 2, path.stem)
    assert {**again, "adapters": None} == {**entry_in(sound, 2, path.stem), "adapters": None}
    assert tree(done) == tree(run(bumped, tmp_path / "fresh/root"))


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_an_object_that_is_not_whole_is_made_again_alone(built: Built, hub: HubFolder, damage: str) -> None:
    """Both entries that lead to it are dropped and said; nothing has to be learned for that."""
    by_inputs, by_factors = (entries(built.root, of_factors=of_factors)[SHARDS[2]] for of_factors in (False, True))
    target = Cache.open(built.root, create=False).object_path(json.loads(by_inputs.read_bytes())["entry"]["digest"])
    if damage == "cut":
        data = target.read_bytes()
        target.unlink()
        target.write_bytes(data[:-1])
    else:
        target.unlink()
    done = run(bump_readme(hub), built.root)
    assert done.counters == making(planned(hub, built.root), [SHARDS[2]])
    assert reasons(done) == dict.fromkeys(SHARDS[:2], SAME_INPUTS)
    assert [note.split(": ")[0] for note in dropped(done)] == [str(by_inputs), str(by_factors)]
    assert done.location is not None
    assert verify(done.location).ok


def shifted(rows: list[list[Any]]) -> list[list[Any]]:
    """The digests as if the tensors lay elsewhere: of a file with another header."""
    return [[offset + 8, nbytes, digest] for offset, nbytes, digest in rows]


@pytest.mark.parametrize("damage", ["garbage", "edited", "another-file", "another-header", "gone"])
def test_wrong_digests_of_tensors_are_taken_again(built: Built, hub: HubFolder, damage: str) -> None:
    """What cannot be right is as good as none: both adapters are read once more, and the shards found all the same."""
    paths = learned(built.root)
    sound = [path.read_bytes() for path in paths]
    for number, path in enumerate(paths):
        file = json.loads(sound[number])["key"]
        wrong = {
            "garbage": b"\0",
            "edited": sound[number].replace(b"sha256:", b"sha256:0", 1),
            "another-file": sound[1 - number],
            "another-header": entry_bytes(1, file, shifted(entry_in(sound[number], 1, file))),
            "gone": None,
        }[damage]
        path.unlink() if wrong is None else path.write_bytes(wrong)
    for path in entries(built.root, of_factors=False).values():
        path.unlink()
    adapters = sum(payload(hub.source_folder / path) for path in (TURBO, DEFAULT))
    done = run(bump_readme(hub), built.root)
    assert (done.result, done.counters) == ("reused", Counters(read=adapters))
    assert reasons(done) == dict.fromkeys(SHARDS, SAME_FACTORS)
    assert [path.read_bytes() for path in paths] == sound


def test_an_adapter_that_changes_after_the_plan_is_not_learned(
    built: Built, hub: HubFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digests would be remembered under another content's name."""
    bumped = bump_turbo_block(hub, 0)
    fetch = learning.fetch_files

    def edit_and_fetch(*arguments: Any) -> Any:
        path = bumped.source_folder / TURBO
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return fetch(*arguments)

    monkeypatch.setattr(learning, "fetch_files", edit_and_fetch)
    before = {path: path.read_bytes() for path in learned(built.root)}
    with pytest.raises(BrokenInput, match="turbo") as caught:
        run(bumped, built.root)
    assert caught.value.code == "input-changed"
    assert {path: path.read_bytes() for path in learned(built.root)} == before


@pytest.fixture
def online(hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server with the hub folder and its revision of another turbo block, and a client with an empty cache."""
    bump_turbo_block(hub, 0)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield server


def test_the_adapter_is_fetched_first_and_then_the_shards_that_are_built(
    online: HubServer, hub: HubFolder, tmp_path: Path
) -> None:
    """On a host that dropped the source after the first build."""
    root = tmp_path / "root"
    run(hub, root, hub=None)
    shutil.rmtree(tmp_path / "hf/hub")
    online.forget()
    bumped = replace(hub, source=other_revision(hub))
    done = run(bumped, root, hub=None)
    weights = [
        r.path for r in online.requests if r.payload and r.path.endswith(".safetensors") and "/resolve/" in r.path
    ]
    fetched = [path.split(f"/resolve/{bumped.source}/")[1] for path in weights]
    built = [f"h3-base/{path}" for path in holders(bumped, 0)]
    assert fetched[0] == TURBO
    assert set(fetched) == {TURBO, DEFAULT, *built}  # the rebuilt shard takes its pairs from both
    assert done.counters.downloaded == sum(payload(bumped.source_folder / path) for path in set(fetched))


def other_revision(hub: HubFolder) -> str:
    """The commit of the source that is not the first."""
    [found] = {path.name for path in hub.source_folder.parent.iterdir()} - {hub.source}
    return found


@pytest.mark.usefixtures("online")
def test_an_adapter_that_is_not_what_the_hub_says_is_not_learned(hub: HubFolder, tmp_path: Path) -> None:
    """It is named before anything is built, and no digest of it is kept."""
    run(hub, tmp_path / "root", hub=None)
    blob = next((tmp_path / "hf/hub").glob(f"models--*/snapshots/{hub.source}/{TURBO}")).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.unlink()
    blob.write_bytes(data)
    phases, root = Phases(), tmp_path / "other/root"
    with pytest.raises(BrokenInput, match="turbo") as caught:
        materialize(VDN, options(hub, root, hub=None), phase=phases)
    assert caught.value.code == "digest-mismatch"
    default = hashlib.sha256((hub.source_folder / DEFAULT).read_bytes()).hexdigest()
    assert {path.name.split(".")[0] for path in learned(root)} <= {default}
    assert "build" not in phases.totals


def test_room_is_asked_for_what_is_really_built(
    built: Built, hub: HubFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bump of a block does not need the room of all shards; a fresh build does, and is refused before any reading."""
    bumped = bump_turbo_block(hub, 0)
    most = planned(bumped, built.root)
    assert most.is_most
    monkeypatch.setattr(store, "free_room", lambda _path: most.room - 1)
    assert run(bumped, built.root).result == "built"

    phases, fresh = Phases(), tmp_path / "fresh/root"
    needed = planned(bumped, fresh).room
    monkeypatch.setattr(store, "free_room", lambda _path: needed - 1)
    with pytest.raises(CannotWrite, match="needed"):
        materialize(VDN, options(bumped, fresh), phase=phases)
    assert learned(fresh) == []
    assert "build" not in phases.totals


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(hub: HubFolder, tmp_path: Path) -> None:
    """Learning comes before the device is started, but not before it is looked for."""
    with pytest.raises(InvalidUsage, match="cuda:99") as caught:
        run(hub, tmp_path / "root", device="cuda:99")
    assert caught.value.code == "no-such-device"
    assert learned(tmp_path / "root") == []


def test_a_repair_learns_nothing_and_builds_what_was_damaged(built: Built, hub: HubFolder) -> None:
    """Entries of both kinds lead to the damaged object, and to the one that takes its place."""
    bumped = bump_turbo_block(hub, 0)
    done = run(bumped, built.root)
    shard = next(path for path, why in reasons(done).items() if why == CHANGED)
    assert done.path is not None
    path = done.path / shard
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = [found.stat().st_ino for found in learned(built.root)]
    results = {item.name: item.result for item in repair((), options(bumped, built.root))}
    assert results[done.path.name] == "rebuilt"
    assert [found.stat().st_ino for found in learned(built.root)] == before
    assert done.location is not None
    assert verify(done.location).ok
    assert run(bumped, built.root).result == "present"


def test_a_small_adapter_that_the_hub_names_by_a_git_blob_has_one_key(tmp_path: Path) -> None:
    """There is no sha256 of the file to remember its tensors by; the key of the inputs does."""
    adapter = Input("org/repo", "0" * 40, "a.safetensors", 1000, f"sha1-git:{'a' * 40}")
    base = replace(adapter, path="b.safetensors", digest=f"sha256:{'b' * 64}")
    term = Term("a", "A", "B", Range(adapter, 100, 16), Range(adapter, 116, 24), "BF16", 2, 0.5)
    tensor = OutputTensor("w", "BF16", (6, 4), (Fused.whole(Range(base, 8, 48), "BF16", 6, 4, (term,)),))
    root = CacheRoot(tmp_path / "root")
    lookup = Lookup(Cache(root), "fp32-once", TensorDigests(root))
    found = lookup.written(SafetensorsFile("x", {}, (tensor,)), canonical_layout([("w", "BF16", (6, 4))], {}))
    assert found.action is not None
    assert (found.factor_action, found.entry, found.unlearned) == (None, None, ())


def test_the_record_lists_the_files_whose_digest_is_claimed(built: Built, hub: HubFolder) -> None:
    """Carried files: nothing has read them where they lie. It is in the report of the run, not in what names a tree."""
    record = json.loads((built.tree / RECORD_NAME).read_bytes())
    carried = [item["path"] for item in record["outputs"] if item["path"] in record["run"]["links"]]
    assert record["run"]["claimed"] == carried
    assert "transformer/sglang_vdn_linear_branch.safetensors" in carried
    assert not {*SHARDS, "video_vae/source/model.safetensors", "transformer/config.json"} & set(carried)
    again = run(bump_readme(hub), built.root)
    assert again.path is not None
    assert json.loads((again.path / RECORD_NAME).read_bytes())["run"]["claimed"] == carried
