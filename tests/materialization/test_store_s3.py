"""The whole way to a service and back: a model that one host built, on another one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.models import VDN, options, vdn_registry
from support.published_rule import files_of
from support.s3_server import S3Server, answer, slow

from overlay.consumers.sglang import overlay_fingerprint
from overlay.errors import NotHere, Refused, TryAgain
from overlay.materialization.sharing.pull import pull
from overlay.materialization.sharing.push import push

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Built

    from overlay.materialization.request import Options


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A service that this process finds."""
    with S3Server().running() as server:
        server.point_to(monkeypatch)
        yield server


def builder(shared_build: Built) -> Options:
    """The host that built the tiny checkpoint."""
    return _host(shared_build, shared_build.root)


def elsewhere(shared_build: Built, tmp_path: Path) -> Options:
    """A host with a root of its own, and no hub."""
    return replace(_host(shared_build, tmp_path / "other"), hub=None, offline=True)


def _host(shared_build: Built, root: Path) -> Options:
    fingerprint = f"      fingerprint: {overlay_fingerprint(shared_build.hub.overlay_folder)}"
    return options(shared_build.hub, root, registry=vdn_registry(root.parent, shared_build.hub, overlay=fingerprint))


@pytest.mark.slow  # a service of its own, and seven times a client of it
def test_a_model_is_shared(s3: S3Server, shared_build: Built, tmp_path: Path) -> None:
    """A push that is refused or cut, a push, a pull that is cut, a pull: the tree is the one that was built."""
    url, denied = s3.bucket("models"), answer("403 Forbidden", "AccessDenied")
    s3.fail(denied, "PUT")
    with pytest.raises(Refused):
        push(VDN, url, builder(shared_build))
    s3.heal()
    s3.fail(answer("500 Internal Server Error", "InternalError"), "PUT", "v1/trees/")
    with pytest.raises(TryAgain):
        push(VDN, url, builder(shared_build))
    s3.heal()
    host = elsewhere(shared_build, tmp_path)
    with pytest.raises(NotHere):
        pull(VDN, url, host)
    assert push(VDN, url, builder(shared_build)).sent == 0  # all files were there already
    s3.fail(answer("404 Not Found", "NoSuchKey"), "GET", "v1/chunks/", times=1)
    with pytest.raises(NotHere):
        pull(VDN, url, host)
    assert not list((tmp_path / "other").glob("materialized_models/*"))
    s3.fail(denied, "PUT")  # a reader that may not write reads
    done = pull(VDN, url, host)
    assert done.path is not None
    assert files_of(done.path) == files_of(shared_build.tree)


@pytest.mark.slow  # a process of its own
def test_an_interrupt_ends_a_slow_pull(s3: S3Server, shared_build: Built, tmp_path: Path) -> None:
    """Within seconds, though several files are on their way; what had come is gone on with."""
    url, release, host = s3.bucket("interrupted"), threading.Event(), elsewhere(shared_build, tmp_path)
    push(VDN, url, builder(shared_build))
    s3.fail(slow(release), "GET", "v1/chunks/")
    s3.log.clear()
    program = "from overlay.cli import main; main()"
    args = ["pull", VDN, "--store", url, "--registry", str(host.registry), "--cache-root", str(host.cache_root)]
    with subprocess.Popen([sys.executable, "-c", program, *args], stderr=subprocess.PIPE, text=True) as child:
        while sum("v1/chunks/" in line for line in s3.log) < 3:
            assert child.poll() is None
            time.sleep(0.05)
        started = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert time.monotonic() - started < 5
        assert child.stderr is not None
        assert "interrupted" in child.stderr.read()
    release.set()
    s3.heal()
    assert pull(VDN, url, host).result == "pulled"
