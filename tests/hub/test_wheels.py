"""Wheels that a script imports: where they are asked for, and what of the answers is taken."""

from __future__ import annotations

import hashlib
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

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
def answering(
    status: int, data: bytes = DATA, *, location: str = "", drip: str = ""
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server with one answer; its address, and the headers of the requests."""
    seen: list[dict[str, str]] = []
    done = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/here")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if drip == "headers":
                self.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100)
                return
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if drip == "body":
                self.drip(data)
            else:
                self.wfile.write(data)

        def drip(self, data: bytes) -> None:
            for byte in data:
                if done.wait(0.1):
                    return
                self.wfile.write(bytes([byte]))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        done.set()
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


@pytest.mark.parametrize(
    ("to", "is_followed"),
    [
        ("https://files.example.org/w.whl", True),
        ("https://proxied.example.org/w.whl", True),
        ("http://files.example.org/w.whl", False),
        ("https://inside.example.org/w.whl", False),
        ("https://both.example.org/w.whl", False),
        ("https://127.0.0.1/w.whl", False),
        ("https://169.254.169.254/latest/meta-data", False),
        ("https://[::1]/w.whl", False),
        ("https://10.1.2.3:8443/w.whl", False),
        ("file:///etc/passwd", False),
        ("https:///w.whl", False),
        ("https://wheels.corp.example/other.whl", True),
        ("http://wheels.corp.example/other.whl", False),
    ],
)
def test_where_a_redirect_may_lead(monkeypatch: pytest.MonkeyPatch, to: str, is_followed: bool) -> None:  # noqa: FBT001 - a table
    """To public addresses by https; to others only on the entry's own host, as the entry names it."""
    known = {"files.example.org": ["1.1.1.1"], "inside.example.org": ["10.0.0.1"], "wheels.corp.example": ["10.0.0.2"]}
    known["both.example.org"] = ["1.1.1.1", "fe80::1%eth0"]
    resolve = socket.getaddrinfo

    def resolved(host: str, port: int, **kind: Any) -> list[Any]:
        if host == "proxied.example.org":
            raise socket.gaierror
        return [(0, 0, 0, "", (address, port)) for address in known[host]] if host in known else resolve(host, port)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert wheels._may_lead_to(to, "https://wheels.corp.example/w.whl") == is_followed


def test_a_redirect_that_is_not_followed() -> None:
    """It is named, and not asked; nor is one that leads to itself followed for ever."""
    with (
        answering(200) as (other, asked),
        answering(302, location=f"{other.replace('127.0.0.1', 'localhost')}/x") as (url, _),
    ):
        with pytest.raises(Refused, match="leads to http://localhost") as caught:
            read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
        assert (caught.value.code, asked) == ("wheel-refused", [])
    with answering(302, location="/x") as (url, asked):
        with pytest.raises(Refused, match="on and on"):
            read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
        assert len(asked) == 5


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_server_that_drips_is_left(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """However short each single wait is."""
    monkeypatch.setattr(wheels, "_LONGEST", 0.4)
    with answering(200, drip=part) as (url, _), pytest.raises(TryAgain, match=r"within 0 seconds|too slowly") as caught:
        read_wheel(wheel(f"{url}/x"), hub=None, offline=False)
    assert caught.value.code == "connection-lost"


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
