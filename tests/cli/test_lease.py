"""`overlay lease MODEL -- COMMAND`: a program that runs on a model that stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.children import in_child, mount_read_only, own_mounts
from support.demo_hub import MODEL, World, make_built_world

from overlay.cache import CacheRoot
from overlay.cache.collecting import gc
from overlay.cache.leases import leases
from overlay.cli._main import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OVERLAY = (sys.executable, "-m", "overlay")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is materialized."""
    return make_built_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def root(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheRoot:
    """A copy of its cache, in force."""
    shutil.copytree(made.cache, tmp_path / "cache", symlinks=True)
    made.put_in_force(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)
    monkeypatch.setattr("overlay.cache.collecting.LAST_GENERATIONS", 0)
    return CacheRoot(tmp_path / "cache")


@pytest.fixture
def server(root: CacheRoot) -> Iterator[subprocess.Popen[str]]:
    """A program under a lease that says its number once it runs, and waits."""
    code = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [*OVERLAY, "lease", MODEL, "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def tree(root: CacheRoot) -> Path:
    [found] = root.trees.iterdir()
    return found


def test_the_command_gets_the_directory_and_gives_its_status(root: CacheRoot) -> None:
    """{path} and the variable are the model's directory; the exit status is the command's own."""
    code = "import os, sys; print(sys.argv[1]); print(os.environ['OVERLAY_MODEL_PATH']); sys.exit(9)"
    done = subprocess.run(
        [*OVERLAY, "lease", MODEL, "--", sys.executable, "-c", code, "--model={path}"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (9, "")
    assert done.stdout.splitlines() == [f"--model={tree(root)}", str(tree(root))]


def test_the_lease_lasts_as_long_as_the_command(root: CacheRoot, server: subprocess.Popen[str]) -> None:
    """The command has the number of `overlay` itself; gc spares its model until it is killed, and no longer."""
    assert server.stdout is not None
    assert int(server.stdout.readline()) == server.pid

    removal = gc(root, max_size=0)
    [lease] = leases(root)[tree(root).name]

    assert [(kept.what, kept.why, kept.names) for kept in removal.kept] == [("tree", "leased", (tree(root).name,))]
    assert lease.owner is not None
    assert (lease.owner.pid, lease.until) == (server.pid, None)
    server.kill()
    server.wait()
    assert leases(root) == {}
    assert len(gc(root, max_size=0).trees) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_are_the_commands_own(server: subprocess.Popen[str], number: signal.Signals) -> None:
    """A signal ends the command as it would without a lease."""
    assert server.stdout is not None
    server.stdout.readline()
    server.send_signal(number)

    # Python itself makes an exception of SIGINT, and then dies of it.
    assert server.wait() == -number


def test_the_command_has_the_signals_of_a_shell(root: CacheRoot) -> None:
    """What Python ignores for itself is not ignored in the command: `head` ends a pipe."""
    command = [*OVERLAY, "lease", MODEL, "--", "grep", "SigIgn", "/proc/self/status"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    assert not ignored & (1 << (signal.SIGXFSZ - 1))


def test_a_command_that_cannot_be_run(root: CacheRoot, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, and no lease is left."""
    before = signal.getsignal(signal.SIGPIPE)

    assert run(["lease", MODEL, "--", "/nowhere/program"]) == 2

    assert "error[command-not-run]: /nowhere/program: cannot be run" in capsys.readouterr().err
    assert leases(root) == {}
    assert signal.getsignal(signal.SIGPIPE) == before


def test_for_says_how_long_an_unseen_command_is_believed(root: CacheRoot) -> None:
    """With a command, --for is the time for which other hosts believe it."""
    script = 'ls "$OVERLAY_CACHE_ROOT"/.overlay/leases/*'
    done = subprocess.run(
        [*OVERLAY, "lease", MODEL, "--for", "30d", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )

    until = int(done.stdout.split("-until-")[1].split("-")[0])
    assert abs(until - (tree(root).stat().st_ctime + 30 * 86400)) < 3600


def test_on_a_read_only_root_it_runs_without_a_lease(root: CacheRoot) -> None:
    """A reader needs no more than reading; that there is no lease is said. A timed lease, which is all, is an error."""

    def work() -> tuple[int, str, int]:
        if not own_mounts():
            pytest.skip("no mounts here")
        mount_read_only(root.path)
        command = subprocess.run(
            [*OVERLAY, "lease", MODEL, "--", "test", "-d", "{path}"], capture_output=True, text=True, check=False
        )
        timed = subprocess.run([*OVERLAY, "lease", MODEL, "--for", "1h"], capture_output=True, check=False)
        return command.returncode, command.stderr, timed.returncode

    status, remark, timed = in_child(work)

    assert (status, timed) == (0, 4)
    assert remark.startswith("no lease: ")
    assert "Read-only file system" in remark
    assert leases(root) == {}
