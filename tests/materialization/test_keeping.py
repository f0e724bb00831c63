"""What must stay: a model that somebody reads, and what a registry pins today."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.children import end_child, in_child, mount_read_only, own_mounts, start_child
from support.models import STAGE_B, VDN

import overlay
from overlay.cache import Cache, CacheRoot
from overlay.cache.collecting import gc
from overlay.cache.leases import leases
from overlay.cache.listing import ls
from overlay.cli._main import run
from overlay.errors import InvalidRegistry, NotHere, TryAgain
from overlay.formats.wording import format_bytes
from overlay.materialization import lease as lease_module
from overlay.materialization.lease import timed_lease
from overlay.materialization.materialize import materialize
from overlay.materialization.wanted import wanted_trees

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as older than the grace period."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)
    monkeypatch.setattr("overlay.cache.collecting.LAST_GENERATIONS", 0)


def test_a_model_stays_while_it_is_read(built: Built) -> None:
    """The context gives the directory; meanwhile gc takes nothing of it, afterwards it does."""
    root = CacheRoot(built.root)
    with overlay.lease(VDN, built.options()) as path:
        assert path == built.tree
        assert [kept.why for kept in gc(root, max_size=0).kept] == ["leased"]
        assert overlay.verify(path, "full").ok

    assert leases(root) == {}
    assert len(gc(root, max_size=0).trees) == 1


def test_a_failing_reader_gives_its_lease_back(built: Built) -> None:
    """What is raised inside comes out, and no lease stays."""
    with pytest.raises(KeyError), overlay.lease(VDN, built.options()):
        raise KeyError

    assert leases(CacheRoot(built.root)) == {}


def test_a_killed_reader_keeps_nothing(built: Built) -> None:
    """The lease ends with its process, however that ends."""

    def read() -> None:
        with overlay.lease(VDN, built.options()):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(read) == signal.SIGKILL
    assert len(gc(CacheRoot(built.root), max_size=0).trees) == 1


def test_what_is_not_here_cannot_be_leased(built: Built, tmp_path: Path) -> None:
    """Absent and stale models are not here; the hint is the command that brings them; nothing is written."""
    empty = tmp_path / "empty"
    with pytest.raises(NotHere) as caught, overlay.lease(VDN, built.options(cache_root=empty)):
        pass
    assert (caught.value.code, caught.value.hint) == ("model-absent", f"overlay prewarm {VDN}")
    assert not empty.exists()

    with pytest.raises(NotHere) as caught, overlay.lease(VDN, built.options(rule="openvdn")):
        pass
    assert (caught.value.code, caught.value.hint) == ("model-stale", f"overlay prewarm {VDN} --rule openvdn")
    assert leases(CacheRoot(built.root)) == {}


def test_a_model_that_moves_while_it_is_leased(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the location moved on before the lease was there, the next attempt gets the new tree."""
    materialize(VDN, built.options(rule="openvdn"))
    cache = Cache(CacheRoot(built.root))
    [new] = [tree.name for tree in ls(cache.root) if tree.locations]
    [old] = [tree.name for tree in ls(cache.root) if not tree.locations]
    cache.swing_location(built.location.name, old)
    real, asked = lease_module.present, []

    def present(model: str, options: overlay.Options, *, in_force: bool) -> object:
        """The state of another rule is what a bump looks like here."""
        asked.append(model)
        chosen = replace(options, rule="fp32-once" if len(asked) == 1 else "openvdn")
        found = real(model, chosen, in_force=in_force)
        cache.swing_location(built.location.name, new)
        return found

    monkeypatch.setattr(lease_module, "present", present)

    with overlay.lease(VDN, built.options()) as path:
        assert path.name == new
        assert list(leases(cache.root)) == [new]
    assert len(asked) == 2


def test_a_model_that_never_stands_still(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end the attempt is given up, without a lease."""
    monkeypatch.setattr(lease_module, "_leads_there", lambda *_: False)

    with pytest.raises(TryAgain), overlay.lease(VDN, built.options()):
        pass
    with pytest.raises(TryAgain):
        timed_lease(VDN, 60, built.options())
    assert leases(CacheRoot(built.root)) == {}


def test_on_a_read_only_root_reading_goes_on(built: Built) -> None:
    """There is no lease then, which is told."""

    def read() -> list[str]:
        if not own_mounts():
            pytest.skip("no mounts here")
        choices = built.options()
        mount_read_only(built.root)
        notes: list[str] = []
        with overlay.lease(VDN, choices, on_note=notes.append) as path:
            assert path == built.tree
            assert overlay.verify(path, "quick").ok
        return notes

    [note] = in_child(read)

    assert note.startswith(f"no lease: {built.root}: take a lease: Read-only file system")


def test_a_run_keeps_what_it_found(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """gc in the middle of a run takes no object that the run found, although no tree has it: nothing is built twice."""
    cache = Cache(CacheRoot(built.root))
    cache.move_aside(built.tree.name)
    objects = built.objects()
    begun, go_on = os.pipe(), os.pipe()

    def pause(*args: object, **choices: object) -> object:
        os.write(begun[1], b"x")
        os.read(go_on[0], 1)
        return real(*args, **choices)

    from overlay.materialization import sinks

    real = sinks.place_tree
    monkeypatch.setattr(sinks, "place_tree", pause)
    child = start_child(lambda: materialize(VDN, built.options()).result)
    os.read(begun[0], 1)

    removal = gc(cache.root, max_size=0)
    os.write(go_on[1], b"x")

    assert end_child(*child) == "reused"
    assert "build" in [kept.why for kept in removal.kept]
    assert built.objects() == objects


def test_a_tree_that_a_run_found_stays(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A superseded tree that a run goes back to is not collected before its location leads there."""
    old = built.tree
    materialize(VDN, built.options(rule="openvdn"))
    real = Cache.swing_location
    seen: list[tuple[str, ...]] = []

    def swing(cache: Cache, name: str, tree: str) -> Path:
        in_child(lambda: gc(cache.root, max_size=0))
        seen.append(tuple(tree.name for tree in ls(cache.root)))
        return real(cache, name, tree)

    monkeypatch.setattr(Cache, "swing_location", swing)

    done = materialize(VDN, built.options())

    assert done.path == old
    assert seen == [(old.name,)]


def test_what_the_registry_pins_stays(built: Built) -> None:
    """The tree that a location leads to and whose record names today's pins is wanted; a superseded one is not."""
    root, old = CacheRoot(built.root), built.tree.name
    assert wanted_trees(built.options()) == {old}

    materialize(VDN, built.options(rule="openvdn"))

    [new] = wanted_trees(built.options())
    assert new != old
    removal = gc(root, max_size=0, wanted=lambda: wanted_trees(built.options()))
    assert [path.name for path in removal.trees] == [old]
    assert [(kept.why, kept.names) for kept in removal.kept] == [("registry", (new,))]


def test_what_no_registry_pins_may_go(built: Built) -> None:
    """Under other pins it is not wanted. A registry that is named besides counts too."""
    moved = built.options(stage=STAGE_B)

    assert wanted_trees(moved) == frozenset()
    assert wanted_trees(moved, [built.options().registry]) == {built.tree.name}


def test_a_damaged_tree_is_not_wanted(built: Built) -> None:
    """What is not what its record says serves nobody."""
    (built.tree / "model_index.json").unlink()
    assert wanted_trees(built.options()) == frozenset()

    (built.tree / "overlay_record.json").write_text("{")
    assert wanted_trees(built.options()) == frozenset()


@pytest.mark.parametrize("flag", ["--registry", "--also"])
def test_an_invalid_registry_collects_nothing(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """Nobody knows what it wants, so under a limit nothing goes, neither garbage nor models: status 2."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("schema_version: 1\nmodels: [")
    root = CacheRoot(built.root)
    with Cache(root).staging() as folder:
        (folder / "x").write_bytes(b"x")
        Cache(root).adopt_file(folder / "x", "sha256:" + "0" * 64)
    before = set(built.root.rglob("*"))

    assert run(["cache", "gc", "--max-size", "0", "--cache-root", str(built.root), flag, str(broken)]) == 2

    assert str(broken) in capsys.readouterr().err
    assert before == set(built.root.rglob("*"))
    with pytest.raises(InvalidRegistry):
        wanted_trees(built.options(), [broken])


def test_gc_says_what_it_kept_and_why(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and bytes for each reason, as text and as JSON."""
    materialize(VDN, built.options(rule="openvdn"))
    superseded = next(tree for tree in ls(CacheRoot(built.root)) if not tree.locations)
    lease = timed_lease(VDN, 60, built.options(rule="openvdn"))[1]
    command = ["cache", "gc", "--max-size", "0", "--cache-root", str(built.root)]
    command += ["--registry", str(built.options().registry)]
    assert run(["cache", "pin", superseded.name, "--cache-root", str(built.root), "-q"]) == 0
    capsys.readouterr()

    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    lease.file.unlink()
    assert run([*command, "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    size = format_bytes(superseded.size)

    assert lines[-3:] == ["kept", f"  1 tree  {size}  pinned", f"  1 tree  {size}  leased"]
    assert [(item["why"], item["count"]) for item in kept] == [("pinned", 1), ("registry", 1)]
    assert kept[0]["names"] == [superseded.name]
    assert kept[0]["size"] == superseded.size


def test_a_lease_is_taken_fast(built: Built) -> None:
    """It reads no weight and waits for nobody."""
    choices = built.options()
    begun = time.process_time()
    with overlay.lease(VDN, choices):
        pass

    assert time.process_time() - begun < 1
