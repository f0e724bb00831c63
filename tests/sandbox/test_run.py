"""A script that does its work: what it is given, what it may use, what comes back, and how it is ended."""

from __future__ import annotations

import _thread
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.sandboxes import JOB_LIMITS, SANDBOXES, job_of, left_running

from overlay.errors import BrokenInput, Untrusted
from overlay.sandbox import LeftFile, backends, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.sandbox import Ran, Sandbox

pytestmark = [
    pytest.mark.no_torch,
    pytest.mark.parametrize("sandbox", SANDBOXES, ids=lambda sandbox: sandbox.name),
]

BUILD = """
import os, pathlib, shutil, tempfile
def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    out, source = pathlib.Path(output_dir), pathlib.Path(source_dir)
    (out / "transformer").mkdir()
    (out / "transformer/config.json").write_text(manifest["text"])
    try:
        os.link(source / "config.json", out / "linked.json")
    except OSError:
        os.symlink(source / "config.json", out / "linked.json")
    shutil.copy2(source / "config.json", out / "copied.json")
    os.link(out / "copied.json", out / "twice.json")
    with tempfile.TemporaryDirectory() as scratch:
        pathlib.Path(scratch, "a").write_text("x")
"""


HEAD = "import os, time\ndef materialize(**_):\n"


def ran(tmp_path: Path, sandbox: Sandbox, script: str, **changes: object) -> Ran:
    return run(job_of(tmp_path, script, **changes), sandbox=sandbox)


def test_what_it_left_comes_back(tmp_path: Path, sandbox: Sandbox) -> None:
    """Files and links to inputs are listed with sizes and targets, and belong to the caller."""
    done = ran(tmp_path, sandbox, BUILD, manifest={"text": "{}\n"})

    assert done.files == (
        LeftFile("copied.json", "file", 2, None),
        LeftFile("linked.json", "link", 2, tmp_path / "source/config.json"),
        LeftFile("transformer/config.json", "file", 3, None),
        LeftFile("twice.json", "file", 2, None),
    )
    assert done.sandbox == sandbox.name
    assert 0 < done.seconds < 60
    assert 0 < done.peak_memory < JOB_LIMITS.memory
    assert {path.lstat().st_uid for path in (tmp_path / "output").rglob("*")} == {os.geteuid()}
    assert (tmp_path / "output").stat().st_uid == os.geteuid()


def test_it_is_called_as_sglang_calls_it(tmp_path: Path, sandbox: Sandbox) -> None:
    """The module's name, its file, the keywords and the environment are what the job says, and nothing more."""
    script = """
import json, os, sys
def materialize(**given):
    print(json.dumps([__name__, __file__, given, dict(os.environ), sys.flags.isolated, os.listdir(".")]))
"""
    job = job_of(tmp_path, script, {"custom_materializer": "_overlay/make.py", "n": [1, {"a": None}]})
    done = run(replace(job, environ={"HF_HUB_OFFLINE": "1"}), sandbox=sandbox)

    name, file, given, environ, isolated, folder = json.loads(done.output_tail)
    assert (name, file) == ("_sglang_overlay_materializer", str(tmp_path / "overlay/_overlay/make.py"))
    places = {f"{place}_dir": str(tmp_path / place) for place in ("overlay", "source", "output")}
    assert given == {**places, "manifest": job.manifest}
    assert {"HF_HUB_OFFLINE", "HOME", "TMPDIR", "USER", "LANG"} == set(environ) - {"PWD", "LC_CTYPE"}
    assert isolated
    assert folder == []
    assert Path(environ["HOME"]).parent == tmp_path  # beside the output: the same disk, and gone with its folder
    assert not Path(environ["HOME"]).exists()


def test_further_inputs_are_readable_and_importable(tmp_path: Path, sandbox: Sandbox) -> None:
    """Folders named by the job can be read and imported from, through links too; one file of a folder alone as well."""
    for name in ("blobs", "packages", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs/a").write_text("blob")
    (tmp_path / "other/one").write_text("one")
    (tmp_path / "other/two").write_text("two")
    (tmp_path / "packages/helpful.py").write_text("WORD = 'imported'")
    (tmp_path / "by-link").symlink_to("packages")
    job = job_of(
        tmp_path,
        "import helpful, pathlib\ndef materialize(*, source_dir, manifest, **_):\n"
        "    print(helpful.WORD, pathlib.Path(source_dir, 'a').read_text(), open(manifest['one']).read(), flush=True)\n"
        "    open(manifest['two'])",
        {name: str(tmp_path / "other" / name) for name in ("one", "two")},
        readable=(tmp_path / "blobs", tmp_path / "other/one"),
        python_path=(tmp_path / "by-link",),
    )
    (job.source_dir / "a").symlink_to(tmp_path / "blobs/a")

    with pytest.raises(BrokenInput, match="two") as caught:
        run(job, sandbox=sandbox)

    assert caught.value.data["output"].startswith("imported blob one\n")


@pytest.mark.parametrize("link", ["blobs/a", "blobs"])
def test_a_link_counts_by_its_end(tmp_path: Path, sandbox: Sandbox, link: str) -> None:
    """A link to a link of the source is one to the blob that it leads to, and that must be among the inputs."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/a").write_text("blob")
    script = "import os\ndef materialize(*, source_dir, output_dir, **_):\n"
    script += "    os.symlink(source_dir + '/a', output_dir + '/a')"
    job = job_of(tmp_path, script, readable=(tmp_path / link,))
    (job.source_dir / "a").symlink_to("../blobs/a")

    assert run(job, sandbox=sandbox).files == (LeftFile("a", "link", 4, tmp_path / "blobs/a"),)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("def materialize(**_): raise ValueError('of the script')", "ValueError: of the script"),
        ("def materialize(): pass", "unexpected keyword argument"),
        ("x = 1", "has no attribute 'materialize'"),
        ("def materialize(", "SyntaxError"),
        ("import os\ndef materialize(**_): os._exit(3)", "ended with status 3"),
        ("import os\ndef materialize(**_): os.abort()", "was killed by signal 6"),
        ("import os\ndef materialize(**_): os.kill(os.getpid(), 15)", "was killed by signal 15|not permitted"),
        ("def materialize(**_):\n    raise ExceptionGroup('many', [ValueError('first'), ValueError()])", ": first$"),
        ("def materialize(**_): raise KeyError", "line 1: KeyError$"),
        (f"{HEAD}    raise OSError('of a\\nTraceback (most recent call last):\\nKeyError: 1')", "of a KeyError: 1$"),
        # Whatever is printed after it, also by another process.
        (f"{HEAD}    os.fork() or (time.sleep(0.1), print('x'), os._exit(0))\n    raise ValueError('mine')", ": mine$"),
        (f"{HEAD}    import asyncio; asyncio.new_event_loop()", "line 3: PermissionError"),
    ],
)
def test_a_failure_is_told(tmp_path: Path, sandbox: Sandbox, script: str, message: str) -> None:
    """What was raised, whatever is printed behind it; a missing function, a status and a signal are told apart."""
    with pytest.raises(BrokenInput, match=message) as caught:
        ran(tmp_path, sandbox, script)

    assert (caught.value.code, caught.value.exit_status) == ("script-failed", 1)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("raise RuntimeError('cannot save') from OSError(27, 'File too large')", "disk"),
        ("raise RuntimeError('I/O error: File too large (os error 27)')", "disk"),
        ('raise RuntimeError("can\'t start new thread")', "processes"),
        (
            "os.write(2, b'libgomp: Thread creation failed: Resource temporarily unavailable'); os._exit(1)",
            "processes",
        ),
        ("raise BlockingIOError(11, 'Resource temporarily unavailable')", None),  # of a pipe, say: it had no processes
        ("print('File too large', flush=True); raise ValueError", None),
    ],
)
def test_what_the_kernel_refused_is_a_limit(tmp_path: Path, sandbox: Sandbox, body: str, limit: str | None) -> None:
    """A file that may not grow, threads that may not start: by the words of libraries, where nothing is left of it."""
    with pytest.raises(BrokenInput) as caught:
        ran(tmp_path, sandbox, f"{HEAD}    {body}")

    assert (caught.value.code, caught.value.data.get("limit")) == (f"script-{'limit' if limit else 'failed'}", limit)


def test_output_is_harmless_and_bounded(tmp_path: Path, sandbox: Sandbox) -> None:
    """Escape sequences and bad UTF-8 become marks; the last 64 KiB are kept."""
    script = "import os\ndef materialize(**_):\n    for _ in range(64): os.write(1, b'x' * 2**16)\n"
    script += "    os.write(1, b'\\x1b[31m\\xff\\r\\x07'); os.write(2, 'ä end'.encode())"

    tail = run(job_of(tmp_path, script), sandbox=sandbox).output_tail

    assert tail.endswith("x\ufffd[31m\ufffd\ufffd\ufffdä end")
    assert len(tail) == 2**16 - 1  # ä is two bytes


def test_processes_of_its_own_are_allowed(tmp_path: Path, sandbox: Sandbox) -> None:
    """Threads, forks and programs work as long as they end before it does."""
    script = """
import multiprocessing, subprocess, sys, threading
def materialize(*, output_dir, **_):
    threading.Thread(target=print, args=("thread",)).start()
    subprocess.run([sys.executable, "-c", "print('program')"], check=True)
    child = multiprocessing.get_context("fork").Process(target=print, args=("fork",))
    child.start()
    child.join()
"""
    assert set(ran(tmp_path, sandbox, script).output_tail.split()) == {"thread", "program", "fork"}


def test_orphans_that_end_are_taken_in(tmp_path: Path, sandbox: Sandbox) -> None:
    """Processes that lost their parent and ended are not left behind, however many."""
    script = """
import os
def materialize(**_):
    for _ in range(3 * 32):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.fork()
            os._exit(0)
        os.wait()
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
"""
    assert ran(tmp_path, sandbox, script).files == ()


def test_many_inputs_are_readable_and_their_neighbours_not(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files than bubblewrap takes words are in view by their folder, of which only they can be read."""
    monkeypatch.setattr(backends, "_MOST_BOUND", 40)
    (tmp_path / "blobs").mkdir()
    for number in range(60):
        (tmp_path / f"blobs/{number}").write_text(str(number))
    (tmp_path / "blobs/other").write_text("secret")
    script = "def materialize(*, manifest, **_):\n    for name in (*range(60), 'other'):\n"
    script += "        print(open(f\"{manifest['blobs']}/{name}\").read(), end=' ', flush=True)"
    job = job_of(
        tmp_path,
        script,
        {"blobs": str(tmp_path / "blobs")},
        readable=tuple(tmp_path / f"blobs/{number}" for number in range(60)),
    )

    with pytest.raises(BrokenInput, match="PermissionError") as caught:
        run(job, sandbox=sandbox)

    assert caught.value.data["output"].startswith("".join(f"{number} " for number in range(60)) + "Traceback")


def test_a_folder_closed_to_everybody_is_no_limit(tmp_path: Path, sandbox: Sandbox) -> None:
    """A folder of mode 0 is looked into all the same, and taken over."""
    script = "import os\ndef materialize(*, output_dir, **_):\n    os.umask(0)\n    os.mkdir(output_dir + '/shut', 0)"

    assert ran(tmp_path, sandbox, script).files == ()


def test_without_its_guard_nothing_goes_on(tmp_path: Path, sandbox: Sandbox) -> None:
    """A guard that the system kills is no success; the script ends with it, and so do processes that it started."""

    mine = threading.get_native_id()

    def kill_guard() -> None:
        for child in Path(f"/proc/self/task/{mine}/children").read_text().split():
            if b"overlay.sandbox.guard" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)

    began = time.monotonic()
    with (
        pytest.raises(Untrusted, match="its guard ended with status -9"),
        once_started(tmp_path, kill_guard),
    ):
        run(job_of(tmp_path, FORKED, limits=replace(JOB_LIMITS, seconds=50)), sandbox=sandbox)

    assert time.monotonic() - began < 30
    assert left_running() == []


_STARTED = "open(output_dir + '/started', 'w').close()"
FORKED = f"import os, time\ndef materialize(output_dir, **_):\n    if os.fork(): {_STARTED}\n    time.sleep(60)"
SLEEP = f"import time\ndef materialize(output_dir, **_):\n    {_STARTED}\n    time.sleep(60)"


@contextmanager
def once_started(folder: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something beside, once the script in this folder says that it runs."""

    def wait() -> None:
        until((folder / "output/started").exists)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def until(reached: Callable[[], object]) -> None:
    """Wait for something, not for ever."""
    end = time.monotonic() + 30
    while not reached() and time.monotonic() < end:
        time.sleep(0.02)
    assert reached()


def test_an_interrupt_ends_it(tmp_path: Path, sandbox: Sandbox) -> None:
    """An exception in the caller, such as an interrupt, leaves no process, and is passed on."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), once_started(tmp_path, _thread.interrupt_main):
        run(job_of(tmp_path, SLEEP, limits=replace(JOB_LIMITS, seconds=50)), sandbox=sandbox)

    assert time.monotonic() - began < 40
    assert left_running() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_caller(tmp_path: Path, sandbox: Sandbox, number: int) -> None:
    """A caller that is killed, without any chance to clean up, takes the sandbox with it."""
    program = f"""
import dataclasses, sys
from pathlib import Path
from support.sandboxes import JOB_LIMITS, job_of
from overlay.sandbox import Sandbox, run
job = job_of(Path({str(tmp_path)!r}), {SLEEP!r}, limits=dataclasses.replace(JOB_LIMITS, seconds=50))
run(job, sandbox=Sandbox({sandbox.name!r}, None))
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}) as caller:
        until((tmp_path / "output/started").exists)
        assert left_running() != []
        caller.send_signal(number)

    until(lambda: left_running() == [])


@pytest.mark.parametrize("wrong", ["hard link", "input inside", "limit"])
def test_a_job_that_makes_no_sense_is_refused(tmp_path: Path, sandbox: Sandbox, wrong: str) -> None:
    """Inputs in the output folder, also by a hard link, and limits of nothing are mistakes of the caller."""
    job = job_of(tmp_path, SLEEP)
    if wrong == "hard link":
        os.link(job.source_dir / "config.json", job.output_dir / "a")
    elif wrong == "input inside":
        job = replace(job, readable=(job.output_dir / "a",))
    else:
        job = replace(job, limits=replace(JOB_LIMITS, memory=0))

    with pytest.raises(
        ValueError, match={"hard link": "hard links", "input inside": "apart from", "limit": "not positive"}[wrong]
    ):
        run(job, sandbox=sandbox)
