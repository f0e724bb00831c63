"""Back to the generation before, and forward again: what a consumer gets, and what the next run does."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from support.children import in_child
from support.hubs import commit
from support.models import copy_root, write_registry
from support.small_models import BASE_REPO, MODEL, STYLE_REPO, small_adapter, write_peft, write_small_hub

import overlay
from overlay.cache import Cache, CacheRoot
from overlay.cache.collecting import gc, rm
from overlay.cache.listing import ls
from overlay.cli._main import run
from overlay.errors import BrokenInput, InvalidUsage, NotHere, TryAgain
from overlay.materialization import rollback as rollback_module
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.request import Options
from overlay.materialization.resolve import present, resolve
from overlay.materialization.rollback import rollback
from overlay.materialization.sharing.pull import pull

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Generations:
    """A root with three generations of a model, each of another commit of its adapter.

    Attributes:
        trees: Their names, the first one first.
    """

    hub: Path
    root: CacheRoot
    trees: tuple[str, ...]

    def pins(self, number: int) -> Options:
        """Options under a registry that pins this generation, from 1."""
        revision = commit("bcde"[number - 1])
        registry = write_registry(
            self.root.path.parent,
            f"""\
  {MODEL}:
    source: {{repo: {BASE_REPO}, revision: {commit("a")}}}
    needs:
      - {{repo: {STYLE_REPO}, revision: {revision}}}
    recipe: {{name: lora, base: {{path: unet}}, adapters: [{{repo: {STYLE_REPO}}}]}}
""",
        )
        return Options(registry=registry, hub=self.hub, cache_root=self.root.path)

    @property
    def now(self) -> Options:
        """Options under today's registry."""
        return self.pins(3)

    def here(self, chosen: Options | None = None) -> int:
        """Which generation today's location leads to, from 1."""
        tree = resolve(MODEL, chosen or self.now).state.tree
        assert tree is not None
        return self.trees.index(tree.name) + 1

    def at(self, number: int) -> Path:
        return self.root.tree(self.trees[number - 1])


@pytest.fixture(scope="session")
def shared_generations(tmp_path_factory: pytest.TempPathFactory) -> Generations:
    """Built once: read it, never write into it."""
    folder = tmp_path_factory.mktemp("generations")
    _, style = write_small_hub(folder / "hub")
    for digit, seed in (("c", 2), ("d", 3), ("e", 4)):
        write_peft(_made(style.parent / commit(digit)), small_adapter(seed))
    made = Generations(folder / "hub", CacheRoot(folder / "root"), ())
    for number in (1, 2, 3):
        done = materialize(MODEL, made.pins(number))
        assert done.path is not None
        made = replace(made, trees=(*made.trees, done.path.name))
        os.utime(made.root.current / done.path.name, (number, number))
    return made


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def built(shared_generations: Generations, tmp_path: Path) -> Generations:
    """The same with a root of the test's own."""
    root = copy_root(shared_generations.root.path, tmp_path / "root")
    return replace(shared_generations, root=CacheRoot(root))


def links(root: CacheRoot) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in root.locations.iterdir()}  # noqa: PTH115 - as it stands there


def test_back_further_back_and_forward(built: Generations) -> None:
    """Each rollback goes one back; undo goes to where the first one began; nothing is built, and no link left over."""
    before = links(built.root)
    for expected in (2, 1):
        planned = rollback(MODEL, built.now, dry_run=True)
        assert built.here() == expected + 1
        done = rollback(MODEL, built.now)
        assert done == planned
        assert (done.came_from.name, done.to.name) == (built.trees[expected], built.trees[expected - 1])
        assert (built.here(), done.is_undo) == (expected, False)
    with pytest.raises(NotHere, match="no generation before") as caught:
        rollback(MODEL, built.now)
    assert caught.value.code == "no-previous"
    assert "--undo" in str(caught.value.hint)

    done = rollback(MODEL, built.now, undo=True)
    assert (done.is_undo, done.to.name) == (True, built.trees[2])
    assert links(built.root) == before
    assert resolve(MODEL, built.now).state.name == "present"
    assert list(built.root.rolled_back.iterdir()) == []
    with pytest.raises(NotHere) as caught:
        rollback(MODEL, built.now, undo=True)
    assert caught.value.code == "not-rolled-back"


def test_what_a_consumer_gets(built: Generations) -> None:
    """The state is stale and says why; path and lease give what was rolled back to; what must be as pinned refuses."""
    rollback(MODEL, built.now)

    state = resolve(MODEL, built.now).state
    assert (state.name, state.tree) == ("stale", built.at(2))
    assert state.why.startswith(f"rolled back from {built.trees[2]} on 20")
    with overlay.lease(MODEL, built.now) as path:
        assert path == built.at(2)
    with pytest.raises(NotHere) as caught:
        present(MODEL, built.now)
    assert (caught.value.code, caught.value.hint) == ("model-stale", f"overlay rollback {MODEL} --undo")


def test_a_run_of_the_same_pins_leaves_it(built: Generations) -> None:
    """It succeeds, for a deploy script may begin with it, and says what is so; a dry run says so too."""
    rollback(MODEL, built.now)
    before = links(built.root)

    planned = plan(MODEL, built.now)
    assert planned.is_present
    assert any("rolled back from" in note for note in planned.notes)
    done = materialize(MODEL, built.now)

    assert (done.result, done.path) == ("present", built.at(2))
    assert any("rolled back from" in note and "--undo" in note for note in done.notes)
    assert pull(MODEL, "nowhere", built.now).notes == done.notes
    assert links(built.root) == before


def test_a_run_of_other_pins_goes_forward(built: Generations) -> None:
    """New pins are what somebody wants now; older ones have their own location; both end at what is pinned."""
    rollback(MODEL, built.now)

    done = materialize(MODEL, built.pins(4))
    assert done.path is not None
    assert done.path.name not in built.trees
    assert resolve(MODEL, built.pins(4)).state.name == "present"
    assert materialize(MODEL, built.pins(2)).path == built.at(2)
    assert resolve(MODEL, built.pins(2)).state.name == "present"


def test_to_a_tree_by_name(built: Generations) -> None:
    """Any generation; to where it came from is an undo, to where it is nothing; another model's tree is none."""
    assert rollback(MODEL, built.now, to=built.trees[0]).to.name == built.trees[0]
    assert built.here() == 1
    assert rollback(MODEL, built.now, to=built.trees[0]).came_from.name == built.trees[0]
    assert rollback(MODEL, built.now, to=built.trees[1]).is_undo is False
    assert rollback(MODEL, built.now, to=built.trees[2]).is_undo
    assert resolve(MODEL, built.now).state.name == "present"
    for options, code in (({"to": "nobody-1"}, "not-in-cache"), ({"to": "x", "undo": True}, "option-conflict")):
        with pytest.raises((NotHere, InvalidUsage)) as caught:
            rollback(MODEL, built.now, **options)
        assert caught.value.code == code


@pytest.mark.parametrize("dry_run", [True, False])
def test_no_location_is_led_to_a_damaged_tree(built: Generations, dry_run: object) -> None:
    """It is looked at before; the hint names the way round; nothing moved."""
    [file] = built.at(2).glob("unet/a.safetensors")
    os.truncate(file, file.stat().st_size - 1)

    with pytest.raises(BrokenInput, match=r"unet/a\.safetensors: has") as caught:
        rollback(MODEL, built.now, dry_run=bool(dry_run))
    assert caught.value.code == "tree-damaged"
    assert built.here() == 3
    rollback(MODEL, built.now, to=built.trees[0])
    assert built.here() == 1


def test_away_from_a_damaged_tree(built: Generations) -> None:
    """That is what a rollback may be for; forward to it there is no way but a build."""
    (built.at(3) / "unet/a.safetensors").unlink()
    rollback(MODEL, built.now)
    assert resolve(MODEL, built.now).state.is_in_force
    with pytest.raises(BrokenInput):
        rollback(MODEL, built.now, undo=True)


def test_what_is_not_here_cannot_be_rolled_back(built: Generations, tmp_path: Path) -> None:
    """Pins that were never built, an empty cache: status 3, and nothing is written."""
    empty = replace(built.now, cache_root=tmp_path / "empty")
    for chosen in (built.pins(4), empty):
        with pytest.raises(NotHere) as caught:
            rollback(MODEL, chosen)
        assert (caught.value.code, caught.value.hint) == ("no-previous", f"overlay prewarm {MODEL}")
    assert not (tmp_path / "empty").exists()


def test_what_it_came_from_may_be_gone(built: Generations) -> None:
    """The model stays rolled back; undo names the build."""
    rollback(MODEL, built.now)
    rm(built.root, [built.trees[2]])
    assert materialize(MODEL, built.now).path == built.at(2)
    with pytest.raises(NotHere) as caught:
        rollback(MODEL, built.now, undo=True)
    assert caught.value.hint == f"overlay prewarm {MODEL}"


# With collectors and builds


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as older than the grace period."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)


def names(root: CacheRoot) -> set[str]:
    return {tree.name for tree in ls(root)}


def test_a_collector_leaves_both_ends(built: Generations, old: None) -> None:
    """Before a rollback the last two stay, after it also what it led to."""
    rollback(MODEL, built.now, to=built.trees[0])
    gc(built.root, max_size=0, max_age=0)
    assert names(built.root) == set(built.trees)
    rollback(MODEL, built.now, undo=True)
    gc(built.root, max_size=0, max_age=0)
    assert names(built.root) == set(built.trees[1:])
    assert rollback(MODEL, built.now).to.name == built.trees[1]


@pytest.mark.parametrize("step", ["hold", "note_rollback", "point_location"])
def test_a_collector_in_between(built: Generations, old: None, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """At any step: either the tree is gone and nothing moved, or it stays and the location leads to it."""
    real = getattr(rollback_module, step)

    def collect_first(*args: Any) -> Any:
        in_child(lambda: gc(built.root, max_size=0, max_age=0))
        return real(*args)

    monkeypatch.setattr(rollback_module, step, collect_first)
    with pytest.raises(TryAgain, match="removed") if step == "hold" else nullcontext():
        rollback(MODEL, built.now, to=built.trees[0])
    assert built.here() == (3 if step == "hold" else 1)
    assert all((built.root.locations / link).exists() for link in links(built.root).values())
    assert resolve(MODEL, built.now).state.is_in_force


@pytest.mark.parametrize("step", ["hold", "note_rollback", "point_location"])
def test_a_publication_in_between(built: Generations, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Where locks do nothing, a build may publish at any step: the rollback is as good, and as well known."""
    real, cache = getattr(rollback_module, step), Cache.open(built.root.path, create=False)
    location = resolve(MODEL, built.now).state.location
    assert location is not None

    def publish_first(*args: Any) -> Any:
        cache.swing_location(location.name, built.trees[2])
        return real(*args)

    monkeypatch.setattr(rollback_module, step, publish_first)
    rollback(MODEL, built.now)

    assert built.here() == 2
    assert materialize(MODEL, built.now).path == built.at(2)


@pytest.mark.parametrize("step", ["note_rollback", "point_location"])
def test_killed_in_between(built: Generations, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A rollback that did not come to its end was none; the next one is."""

    def killed() -> None:
        monkeypatch.setattr(rollback_module, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        rollback(MODEL, built.now)

    assert in_child(killed) == signal.SIGKILL
    assert resolve(MODEL, built.now).state.name == "present"
    rollback(MODEL, built.now)
    assert built.here() == 2


def test_it_waits_for_a_build_of_the_model(built: Generations) -> None:
    """One lock for both: whoever publishes the location is not overtaken; a timeout says who."""
    location = resolve(MODEL, built.now).state.location
    assert location is not None
    with Cache.open(built.root.path, create=False).lock(location.name, timeout=0):
        with pytest.raises(TryAgain) as caught:
            rollback(MODEL, replace(built.now, lock_timeout=0.0))
        assert caught.value.code == "lock-busy"
    assert built.here() == 3


# As commands


def command(built: Generations, *words: str) -> int:
    places = ("--registry", str(built.now.registry), "--cache-root", str(built.root.path), "--hub", str(built.hub))
    return run([*words, *places])


def test_as_a_command(built: Generations, capsys: pytest.CaptureFixture[str]) -> None:
    """From, to, when built, pins; then path, prewarm, resolve and ls say what is so; undo ends it."""
    assert command(built, "rollback", MODEL, "--dry-run") == 0
    said = capsys.readouterr()
    assert ("would be rolled back" in said.out, said.err) == (True, "")
    assert command(built, "rollback", MODEL) == 0
    said = capsys.readouterr()
    for text in (
        *built.trees[1:],
        f"{STYLE_REPO}@{commit('c')[:12]}",
        f"{STYLE_REPO}@{commit('d')[:12]}",
        ", built 20",
    ):
        assert text in said.out
    assert f"overlay rollback {MODEL} --undo" in said.err

    assert command(built, "path", MODEL) == 0
    said = capsys.readouterr()
    assert said.out == f"{built.at(2)}\n"
    assert "rolled back from" in said.err
    assert command(built, "prewarm", MODEL) == 0
    assert "rolled back from" in capsys.readouterr().err
    assert command(built, "resolve", MODEL, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["path"]) == ("stale", str(built.at(2)))
    assert document["next"].startswith(f"overlay rollback {MODEL} --undo")
    assert command(built, "cache", "ls", "--json") == 0
    generations = {item["tree"]: item["generation"] for item in json.loads(capsys.readouterr().out)["models"]}
    assert [generations[tree] for tree in built.trees] == ["previous", "current", "rolled-back"]
    assert command(built, "cache", "ls") == 0
    assert "rolled-back" in capsys.readouterr().out

    assert command(built, "rollback", MODEL, "--undo", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["result"], document["to"]["tree"]) == ("undone", built.trees[2])
    assert command(built, "rollback", MODEL, "--to", built.trees[2]) == 0
    assert "leads there already" in capsys.readouterr().out
    assert command(built, "rollback", MODEL, "--to", "nobody-1") == 3
