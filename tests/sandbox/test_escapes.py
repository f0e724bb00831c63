"""Scripts that try to get out: each is stopped in each sandbox, named, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.escapes import ESCAPES, PREAMBLE, Escape
from support.sandboxes import JOB_LIMITS, SANDBOXES, job_of

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
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_UNIX) as unix:
        with socket.socket(socket.AF_UNIX) as abstract:
            tcp.bind(("127.0.0.1", 0))
            udp.bind(("127.0.0.1", 0))
            unix.bind(str(tmp_path / "listener")) if len(str(tmp_path)) < 90 else unix.bind("/tmp/" + tmp_path.name)  # noqa: S108
            name = f"overlay-test-{os.urandom(8).hex()}"
            abstract.bind("\0" + name)
            for listener in (tcp, unix, abstract):
                listener.listen()
                listener.setblocking(False)  # noqa: FBT003 - as the standard library has it
            udp.setblocking(False)  # noqa: FBT003 - as the standard library has it
            disk = next((f"/dev/{name}" for name in ("vda", "sda", "nvme0n1") if Path(f"/dev/{name}").exists()), "/dev/sda")
            yield {
                "home": str(home),
                "outside": str(outside),
                "secret": str(outside / "secret"),
                "caller": os.getpid(),
                "tcp": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "unix": unix.getsockname(),
                "abstract": name,
                "disk": disk,
                "memory": JOB_LIMITS.memory,
            }
            for listener in (tcp, unix, abstract):
                with pytest.raises(BlockingIOError):
                    listener.accept()
            with pytest.raises(BlockingIOError):
                udp.recv(1)


def ended(escape: Escape, sandbox: Sandbox, tmp_path: Path, world: dict[str, Any]) -> tuple[str, str]:
    """How the run ended, as the table names it, and all that was heard of it."""
    job = job_of(tmp_path, PREAMBLE + textwrap.indent(escape.attempt, "    "), world)
    (job.source_dir / "link-to-secret").symlink_to(world["secret"])
    (job.source_dir / "link-to-outside").symlink_to(world["outside"])
    for name, folder in {"here": tmp_path, "path": tmp_path / "planted", "user": Path(world["home"])}.items():
        folder.mkdir(exist_ok=True)
        (folder / f"planted_{name}.py").write_text("")
    heard: list[str] = []
    try:
        ran = run(job, heard.append, sandbox=sandbox)
    except BrokenInput as error:
        detail = {"script-limit": error.data.get("limit"), "script-output": error.data.get("found")}
        return f"{error.code}: {detail.get(error.code) or error.message}", "".join(heard) + str(error.data)
    return "no effect", "".join(heard) + ran.output_tail


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
    assert [] == left_running(tmp_path)


def left_running(tmp_path: Path) -> list[str]:
    """Processes whose command line, working folder or environment leads to the test's folder, or whose parent we are."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    running = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                command = (process / "cmdline").read_bytes()
                uid = process.stat().st_uid
            except OSError:
                continue
            if b"sandbox/inside.py" in command and uid >= 2 * 10**9 - 1:
                running.append(process.name)
    return [name for name in running if name in children or str(tmp_path) in _environment(name)]


def _environment(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
