"""Scripts that try to get out: each is stopped in each sandbox, named, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import textwrap
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.escapes import ESCAPES, PREAMBLE, Escape
from support.sandboxes import JOB_LIMITS, SANDBOXES, job_of, left_running

from overlay.errors import BrokenInput
from overlay.sandbox import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.sandbox import Sandbox

pytestmark = pytest.mark.no_torch

TOKEN = "hf_the_token_that_nobody_may_see"  # noqa: S105 - of a world that exists for the test


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A home with a token, a folder outside, listeners of every kind, planted modules; all facts for the script."""
    home, outside = Path(os.environ["HOME"]), tmp_path / "outside"
    (home / ".cache/huggingface").mkdir(parents=True, exist_ok=True)
    (home / ".cache/huggingface/token").write_text(TOKEN)
    outside.mkdir()
    (outside / "secret").write_text(TOKEN)
    (outside / "secret").chmod(0o644)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with ExitStack() as stack:
        tcp, udp, unix, abstract = listeners = [
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        ]
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))) / "listener"
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(place))
        abstract.bind("\0" + str(tmp_path))
        for listener in (tcp, unix, abstract):
            listener.listen()
        yield {
            "listeners": listeners,
            "home": str(home),
            "outside": str(outside),
            "secret": str(outside / "secret"),
            "caller": os.getpid(),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "unix": str(place),
            "abstract": str(tmp_path),
            "disk": next((path for path in ("/dev/vda", "/dev/nvme0n1") if Path(path).exists()), "/dev/sda"),
            "memory": JOB_LIMITS.memory,
        }


def arrived(world: dict[str, Any]) -> list[str]:
    """Names of the listeners that somebody spoke to."""
    ready = select.select(world["listeners"], [], [], 0)[0]
    return [str(listener.family) for listener in ready]


def facts(world: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in world.items() if name != "listeners"}


def ended(escape: Escape, sandbox: Sandbox, tmp_path: Path, world: dict[str, Any]) -> tuple[str, str]:
    """How the run ended, as the table names it, and all that was heard of it."""
    limits = replace(JOB_LIMITS, seconds=1) if escape.named.endswith("seconds") else JOB_LIMITS
    job = job_of(tmp_path, script_of(escape), facts(world), limits=limits)
    (job.source_dir / "link-to-secret").symlink_to(world["secret"])
    (job.source_dir / "link-to-outside").symlink_to(world["outside"])
    for name, folder in {"here": tmp_path, "path": tmp_path / "planted", "user": Path(world["home"])}.items():
        folder.mkdir(exist_ok=True)
        (folder / f"planted_{name}.py").write_text("")
    try:
        ran = run(job, sandbox=sandbox)
    except BrokenInput as error:
        detail = {"script-limit": error.data.get("limit"), "script-output": error.data.get("found")}
        return f"{error.code}: {detail.get(error.code) or error.message}", str(error.data)
    return "no effect", ran.output_tail


def script_of(escape: Escape) -> str:
    return PREAMBLE + textwrap.indent(escape.attempt, "    ")


@pytest.mark.parametrize("sandbox", SANDBOXES, ids=lambda sandbox: sandbox.name)
@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.what)
def test_it_is_stopped_and_named(escape: Escape, sandbox: Sandbox, tmp_path: Path, world: dict[str, Any]) -> None:
    """Nothing is read, sent, changed or left running, and the error says what the table says."""
    before = sorted((path, path.lstat().st_mode) for path in Path(world["outside"]).rglob("*"))

    named, heard = ended(escape, sandbox, tmp_path, world)

    code, _, details = escape.named.partition(": ")
    assert named.startswith(code)
    assert not details or any(detail in named for detail in details.split(", "))
    assert TOKEN not in heard
    assert before == sorted((path, path.lstat().st_mode) for path in Path(world["outside"]).rglob("*"))
    assert (tmp_path / "source/config.json").read_text() == "{}"
    assert not Path("/written").exists()
    assert arrived(world) == []
    assert left_running() == []


@pytest.mark.parametrize("escape", [each for each in ESCAPES if each.free], ids=lambda escape: escape.what)
def test_it_would_work_outside(escape: Escape, tmp_path: Path, world: dict[str, Any]) -> None:
    """Without a sandbox the same attempt succeeds, so the tests above can fail."""
    job = job_of(tmp_path, "")
    (job.source_dir / "link-to-secret").symlink_to(world["secret"])
    (job.source_dir / "link-to-outside").symlink_to(world["outside"])
    folders = {name: str(getattr(job, name)) for name in ("overlay_dir", "source_dir", "output_dir")}
    call = f"materialize(**{folders!r}, manifest={facts(world)!r})"

    done = subprocess.run(
        [sys.executable, "-c", f"{script_of(escape)}\n{call}"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
