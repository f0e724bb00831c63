"""An S3 service on this machine (moto's), and faults between it and its clients."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    Environ = dict[str, Any]
    Fault = Callable[["Request"], Iterator[bytes]]

__all__ = ["Request", "S3Server", "answer", "cut_download", "cut_upload", "flipped", "lost_answer", "silent", "slow"]


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Nobody reads it."""


@dataclass(slots=True)
class Request:
    """One request, and what can be done with it."""

    environ: Environ
    start_response: Any
    service: Any

    def forward(self) -> bytes:
        """Let the service answer: it has started to when this returns its body."""
        return b"".join(self.service(self.environ, self.start_response))

    def cut(self) -> NoReturn:
        """Drop the connection."""
        with contextlib.suppress(OSError):
            self.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError  # the server takes the client for gone


@dataclass(slots=True)
class S3Server:
    """The service. Every request is in ``log`` as ``METHOD path``; the first fault that fits it is made of it."""

    log: list[str] = field(default_factory=list)
    conditional: list[str] = field(default_factory=list)
    faults: list[list[Any]] = field(default_factory=list)
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, fault: Fault, method: str, part: str = "", *, times: int = 10**9) -> None:
        """Make a fault of the next requests of this method that have this part in their path or query."""
        self.faults.append([times, method, part, fault])

    def heal(self) -> None:
        """No more faults, and an empty log."""
        self.faults.clear()
        self.log.clear()
        self.conditional.clear()

    def point_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process find the service as users let it be found, and not wait between its tries."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", self.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
        monkeypatch.setattr("overlay.store.remote._FIRST_WAIT", 0.001)

    def bucket(self, name: str) -> str:
        """Make a bucket. Returns the URL of a store in it."""
        request = urllib.request.Request(f"{self.url}/{name}", data=b"", method="PUT")  # noqa: S310 - ours
        with urllib.request.urlopen(request):  # noqa: S310 - as above
            return f"s3://{name}/some/prefix"

    @contextlib.contextmanager
    def running(self) -> Iterator[S3Server]:
        """Serve on loopback until the context ends."""
        app = self._wrapped(create_backend_app("s3"))
        server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)

    def _wrapped(self, service: Any) -> Any:
        def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
            method, path = environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
            request = Request(environ, start_response, self._atomic(service))
            with self._lock:
                self.log.append(f"{method} {path}")
                if environ.get("HTTP_IF_NONE_MATCH") == "*":
                    self.conditional.append(path)
                fault = self._next_fault(method, path)
            yield from fault(request) if fault else [request.forward()]

        return app

    def _atomic(self, service: Any) -> Any:
        """S3 writes under a condition in one step, moto in two."""

        def app(environ: Environ, start_response: Any) -> list[bytes]:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
            with self._lock:
                return list(service(environ, start_response))

        return app

    def _next_fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault[0] and fault[1] == method and fault[2] in path:
                fault[0] -= 1
                return fault[3]  # type: ignore[no-any-return]  # as fail() was given it
        return None


def answer(status: str, code: str, xml: str = "") -> Fault:
    """The service answers with an error, or with a document of ours."""

    def fault(request: Request) -> Iterator[bytes]:
        request.environ["wsgi.input"].read(int(request.environ.get("CONTENT_LENGTH") or 0))
        body = (xml or f"<Error><Code>{code}</Code><Message>made by a test</Message></Error>").encode()
        request.start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        yield b"" if request.environ["REQUEST_METHOD"] == "HEAD" else body

    return fault


def cut_download(request: Request) -> Iterator[bytes]:
    """Half of the body, and then nothing."""
    body = request.forward()
    yield body[: len(body) // 2]
    request.cut()


def cut_upload(request: Request) -> Iterator[bytes]:
    """Half of the body is taken, and then nothing."""
    request.environ["wsgi.input"].read(int(request.environ["CONTENT_LENGTH"]) // 2)
    request.cut()
    yield b""  # never, but this makes it one of the others


def lost_answer(request: Request) -> Iterator[bytes]:
    """Everything is done, and nobody hears of it."""
    request.forward()
    request.cut()
    yield b""  # never, but this makes it one of the others


def flipped(request: Request) -> Iterator[bytes]:
    """One bit of the body is another."""
    body = bytearray(request.forward())
    body[len(body) // 2] ^= 1
    yield bytes(body)


def slow(release: threading.Event) -> Fault:
    """A byte now and then: never silent for long, never done before it is released."""

    def fault(request: Request) -> Iterator[bytes]:
        body = request.forward()
        for at in range(len(body)):
            yield body[at : at + 1]
            if release.wait(0.2):
                return

    return fault


def silent(release: threading.Event) -> Fault:
    """No answer before it is released, and none then."""

    def fault(request: Request) -> Iterator[bytes]:
        release.wait()
        request.cut()
        yield b""  # never, but this makes it one of the others

    return fault
