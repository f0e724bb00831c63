"""Which sandbox is taken, and what is said where none can be had."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.sandboxes import SANDBOXES, job_of

from overlay.errors import OverlayError, Untrusted
from overlay.sandbox import Sandbox, backends, choice, run, running, sandboxes
from overlay.sandbox.backends import Unusable
from overlay.sandbox.seccomp import filter_program

pytestmark = pytest.mark.no_torch

BWRAP = Path("/usr/bin/bwrap")
TRIED = [str(BWRAP), "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "/bin/true"]
NAMESPACES = BWRAP.exists() and subprocess.run(TRIED, capture_output=True, check=False).returncode == 0


def test_one_works_here() -> None:
    """A machine that runs these tests has a sandbox: the others would say nothing."""
    assert SANDBOXES != ()


@pytest.mark.skipif(not NAMESPACES, reason="bubblewrap is not installed, or may not make namespaces here")
def test_bubblewrap_is_taken_where_it_works() -> None:
    """It comes first, and nothing speaks against it."""
    assert sandboxes()[0] == Sandbox("bubblewrap", None)


@pytest.fixture
def _nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_why_not", lambda name: f"{name} is out of order")


@pytest.mark.usefixtures("_nothing_works")
def test_without_a_sandbox_nothing_runs(tmp_path: Path) -> None:
    """The error names each sandbox with its reason, and has the status of what may not run."""
    with pytest.raises(Untrusted, match="landlock is out of order") as caught:
        run(job_of(tmp_path, "raise SystemExit"))

    assert (caught.value.code, caught.value.exit_status) == ("sandbox-unavailable", 7)
    assert set(caught.value.data["reasons"]) == {"bubblewrap", "landlock"}
    assert "copy that cache root" in str(caught.value.hint)


def test_a_sandbox_that_fails_late_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script may have run and may have said it itself, so no second sandbox is tried."""
    tried = []

    def fail(name: str, *_: object) -> None:
        tried.append(name)
        raise Unusable("gone")

    monkeypatch.setattr(choice, "_why_not", lambda _: None)
    monkeypatch.setattr(choice, "run_in", fail)

    with pytest.raises(Untrusted, match="bubblewrap: gone"):
        run(job_of(tmp_path, ""))

    assert tried == ["bubblewrap"]


def test_a_script_cannot_ask_for_another_sandbox(tmp_path: Path) -> None:
    """What is printed as if by bwrap, or a status of any kind, is of a script that failed."""
    began = tmp_path / "output/began"
    for ending in ("os._exit(92)", "os._exit(93)", "print('bwrap: no', flush=True); os._exit(1)"):
        script = f"import os\ndef materialize(*, output_dir, **_):\n    os.mkdir(output_dir + '/began'); {ending}"
        with pytest.raises(OverlayError) as caught:
            run(job_of(tmp_path, script))
        assert caught.value.code == "script-failed"
        began.rmdir()


def why_not(name: str) -> str | None:
    """Of a fresh look."""
    return choice._why_not.__wrapped__(name)


def test_bubblewrap_that_others_can_change_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that a user may have replaced confines nobody."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\n")
    bwrap.chmod(0o777)
    monkeypatch.setattr(backends, "_BWRAP", (bwrap,))
    assert "can be changed by others" in str(why_not("bubblewrap"))

    monkeypatch.setattr(backends, "_BWRAP", (tmp_path / "absent",))
    assert "not installed" in str(why_not("bubblewrap"))


def test_a_bubblewrap_that_cannot_make_namespaces_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids them: its own words are the reason."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setattr(backends, "_BWRAP", (bwrap,))
    if os.geteuid() != 0:
        pytest.skip("only root can make a program of root")

    assert why_not("bubblewrap") == "bwrap: Creating new namespace failed"


def test_a_sandbox_that_lets_a_script_out_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first script tries to escape; here the wrapper of bubblewrap is missing, and the wall behind it."""
    monkeypatch.setattr(backends, "_bubblewrap", lambda *_: [])
    monkeypatch.setattr(backends, "_landlock_abi_or_none", lambda: None)
    monkeypatch.setattr(running, "make_removable", lambda _: None)

    found = str(why_not("bubblewrap"))

    assert "a script could" in found
    assert "read other files" in found
    assert "open sockets" not in found  # of the two that stop this one is left


def test_a_filesystem_that_refuses_a_first_script_its_folders_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where root may not change owners: said of the folder for temporary files, and nothing raised."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(choice, "run_in", refuse)

    assert f"in {tempfile.gettempdir()} " in str(why_not("landlock"))


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which a sandbox was tried goes at the next try, if its owner is gone."""
    left = Path(tempfile.gettempdir()) / f"overlay-probe-{'0' * 12}"
    monkeypatch.setattr("overlay.cache.staging.is_abandoned", lambda folder, _: folder == left)
    (left / "in").mkdir(parents=True)

    why_not("landlock")

    assert not left.exists()


@pytest.mark.parametrize(("version", "words"), [(-1, "Linux 6.2"), (2, "version 2 here")])
def test_an_old_landlock_is_not_enough(version: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, or before it governed truncation, a script could empty files elsewhere."""

    class Library:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def syscall(self, *_: object) -> int:
            return version

    monkeypatch.setattr(ctypes, "CDLL", Library)

    assert words in str(why_not("landlock"))


def test_no_filter_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture whose system calls are not known has no sandbox."""
    monkeypatch.setattr(backends, "filter_program", lambda **_: None)

    assert "architecture" in str(why_not("landlock"))
    assert filter_program(signals=True, machine="riscv64") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_gives_a_script_a_user_that_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice never the same; where a container has no numbers to give, there is no sandbox."""
    assert len({backends.unprivileged_user() for _ in range(5)}) > 1

    monkeypatch.setattr(Path, "read_text", lambda path: {"uid_map": "0 1000 1\n"}.get(path.name, "CapEff:\tffffffff\n"))
    with pytest.raises(Unusable, match="no unprivileged user"):
        backends.unprivileged_user()

    monkeypatch.setattr(Path, "read_text", lambda path: {"uid_map": "0 0 65536\n"}.get(path.name, "CapEff:\t1\n"))
    with pytest.raises(Unusable, match="root lacks the privileges"):
        backends.unprivileged_user()


@pytest.mark.skipif(not BWRAP.exists(), reason="bubblewrap is not installed")
def test_bwrap_of_the_system_is_trusted() -> None:
    """What a package installs passes the test that a replaced one fails."""
    assert BWRAP.stat().st_uid == 0
    assert not BWRAP.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
