"""Wheels that a script imports: where they are asked for, and what of the answers is taken."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from overlay.errors import BrokenInput, NotHere, OverlayError, Refused, TryAgain
from overlay.hub import wheels
from overlay.hub.wheels import read_wheel, wheel_url
from overlay.registry import Wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

DATA = b"PK\x05\x06" + bytes(18)
NAME = "some_helper-1.2-py3-none-any.whl"


def wheel(url: str | None = None, data: bytes = DATA) -> Wheel:
    """One of this content."""
    return Wheel(NAME, hashlib.sha256(data).hexdigest(), url)


@contextmanager
def answering(status: int, data: bytes = DATA) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server with one answer; its address, and the headers of the requests."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/here")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (NAME, "py3/s/some_helper"),
        ("other-1-py2.py3-none-any.whl", "py2.py3/o/other"),
        ("built-1.0-2-py3-none-any.whl", "py3/b/built"),
    ],
)
def test_without_an_address_the_index_is_asked(name: str, path: str) -> None:
    """By the parts of the wheel's name."""
    assert wheel_url(Wheel(name, "0" * 64)) == f"https://files.pythonhosted.org/packages/{path}/{name}"
    assert wheel_url(Wheel(name, "0" * 64, "https://x/y")) == "https://x/y"


def test_a_wheel_comes_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirects are followed, and nobody is told who asks."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with answering(200) as (url, seen):
        assert read_wheel(wheel(f"{url}/moved"), hub=None, offline=False) == DATA
    assert len(seen) == 2
    assert not [headers for headers in seen if "authorization" in headers or "hf_secret" in str(headers)]


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (404, Refused, "wheel-refused"),
        (403, Refused, "wheel-refused"),
        (429, TryAgain, "hub-unavailable"),
        (503, TryAgain, "hub-unavailable"),
    ],
)
def test_answers_that_bring_none(status: int, error: type[OverlayError], code: str) -> None:
    """Final and transient are told apart."""
    with answering(status) as (url, _), pytest.raises(error) as caught:
        read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
    assert caught.value.code == code
    assert url in str(caught.value)


def test_another_file_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another content nor one without an end."""
    with answering(200, b"other") as (url, _):
        with pytest.raises(BrokenInput) as caught:
            read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
        assert caught.value.code == "digest-mismatch"
        monkeypatch.setattr(wheels, "MAX_WHEEL", 4)
        with pytest.raises(BrokenInput) as large:
            read_wheel(wheel(f"{url}/x", b"other"), hub=None, offline=False)
        assert large.value.code == "too-large"


def test_nobody_answers() -> None:
    """Transient, with the way around."""
    with answering(200) as (url, _):
        pass
    with pytest.raises(TryAgain, match=url) as caught:
        read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
    assert f"DIR/wheels/{NAME}" in str(caught.value.hint)


def test_offline_and_from_a_folder(tmp_path: Path) -> None:
    """Nothing is asked for; a folder in the place of the Hub has its wheels beside its repos."""
    with pytest.raises(NotHere) as caught:
        read_wheel(wheel(), hub=None, offline=True)
    assert caught.value.code == "not-cached"
    with pytest.raises(NotHere, match=str(tmp_path)):
        read_wheel(wheel(), hub=tmp_path, offline=False)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / NAME).write_bytes(DATA)
    assert read_wheel(wheel(), hub=tmp_path, offline=True) == DATA
