"""A small server that speaks the Hub's HTTP for a folder: for tests, benchmarks, and hosts without a connection.

Serves ``DIR/<org>/<name>/<revision>/…`` over plain HTTP on 127.0.0.1, so that ``HF_ENDPOINT=http://127.0.0.1:PORT``
is all that a client needs. It can be told to misbehave (:class:`Fault`) and remembers what it was asked
(:class:`Request`).

    python tools/hub_server.py DIR --port 8400 --fault 'path=*/resolve/*,status=503,times=2'
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hub_content import Content
from hub_faults import Fault, parse_fault

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Self

    from hub_content import Entry

CHUNK = 1 << 18
AGENTS = "/api/agent-harnesses"  # asked by the client once a day, for its user agent; neither faulted nor remembered
API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>tree|revision|commits)/(?P<revision>[^/]+))?")
RESOLVE = re.compile(r"/(?P<cdn>cdn/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was answered.

    Attributes:
        number: Which one it was, by its coming.
        range: ``Range`` header, if there was one.
        sent: Bytes of the body that were sent.
        payload: Bytes of ``sent`` that belong to a download of an LFS file. A bounded range is a look at a header and
            counts as none.
        authorized: Whether it carried a token.
    """

    number: int
    method: str
    path: str
    query: str
    range: str | None
    status: int
    sent: int
    payload: int
    authorized: bool


@dataclass(slots=True)
class _Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    entry: Entry | None = None  # a file to send instead of ``body``
    start: int = 0
    stop: int = 0


class HubServer:
    """Serve a folder as the Hub does; use it as a context manager, which runs it on threads of its own.

    Args:
        folder: Holds ``<org>/<name>/<revision>/…``. A revision that is no commit is served under a made-up one.
        port: Port on 127.0.0.1; 0 for any free one.
        lfs: Globs of the files that count as LFS, besides those over 10 MB.
        page_size: Entries in a page of a tree listing; None for all at once.
        token: Token that every request must carry.
        gated: Repos whose terms nobody accepted.
        branches: Commit of ``main`` by repo, where a repo has several revisions.
        cdn: Redirect LFS files to another origin (``localhost``), as the Hub does.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        lfs: Sequence[str] = ("*.safetensors",),
        page_size: int | None = None,
        token: str | None = None,
        gated: Collection[str] = (),
        branches: Mapping[str, str] | None = None,
        cdn: bool = False,
    ) -> None:
        self.content = Content(folder, lfs=lfs, branches=branches or {})
        self.page_size = page_size
        self.token = token
        self.gated = frozenset(gated)
        self.cdn = cdn
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._begun = 0
        self._in_flight = 0
        self._most_at_once = 0
        self._http = _Listener(("127.0.0.1", port), type("Handler", (_Handler,), {"hub": self}))
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Endpoint to give to a client, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        if self._thread is not None:
            self._thread.join()

    def serve(self) -> None:
        """Serve in the calling thread, until interrupted."""
        self._http.serve_forever()

    def fault(self, **options: Any) -> Fault:
        """Add a :class:`Fault`; the first one that matches a request strikes."""
        fault = Fault(**options)
        self.faults.append(fault)
        return fault

    def strike(self, method: str, path: str) -> Fault:
        """The fault that a request meets; one without effect where none matches."""
        with self._lock:
            return next((fault for fault in self.faults if fault.strikes(method, path)), Fault())

    @contextmanager
    def answering(self) -> Iterator[int]:
        """Around the answer to a request; gives its number."""
        with self._lock:
            self._begun += 1
            number = self._begun
            self._in_flight += 1
            self._most_at_once = max(self._most_at_once, self._in_flight)
        try:
            yield number
        finally:
            with self._lock:
                self._in_flight -= 1
                self._idle.notify_all()

    def log(self, request: Request) -> None:
        """Remember a request."""
        with self._lock:
            self.requests.append(request)

    def asked(self, method: str = "*", path: str = "*") -> list[Request]:
        """The requests so far that match, oldest first; those in flight get a second to end."""
        with self._lock:
            self._idle.wait_for(lambda: not self._in_flight, timeout=1)
            return [
                request
                for request in sorted(self.requests, key=lambda request: request.number)  # they end in another order
                if fnmatch.fnmatchcase(request.method, method) and fnmatch.fnmatchcase(request.path, path)
            ]

    def most_at_once(self) -> int:
        """The most requests that were in flight at one time so far."""
        with self._lock:
            return self._most_at_once

    def forget(self) -> None:
        """Start counting anew, once the requests in flight have ended."""
        self.asked()
        with self._lock:
            self.requests.clear()
            self._most_at_once = 0

    def payload(self) -> int:
        """Bytes of LFS files sent so far, looks at headers not counted."""
        return sum(request.payload for request in self.asked())


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away; that is what they are tested for."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with self.hub.answering() as number:
            self._serve(number)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
        """Keep quiet; the server has a log of its own."""

    def _serve(self, number: int) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        if path == AGENTS:
            self._send(_json({"standardEnvVars": [], "harnesses": {}}), Fault())
            return
        fault = self.hub.strike(self.command, path)
        time.sleep(fault.delay)
        if fault.redirect is not None:
            answer = _Answer(HTTPStatus.PERMANENT_REDIRECT, {"Location": fault.redirect + self.path})
        elif fault.status is not None:
            answer = _error(fault.status, fault.code, fault.message)
            if fault.retry_after is not None:
                answer.headers["Retry-After"] = str(fault.retry_after)
        else:
            answer = self._answer(path, parts.query, fault)
        sent = self._send(answer, fault)
        asked_range = self.headers.get("Range")
        bounded = asked_range is not None and not asked_range.endswith("-")
        is_payload = answer.entry is not None and answer.entry.sha256 is not None and not bounded
        self.hub.log(
            Request(
                number=number,
                method=self.command,
                path=path,
                query=parts.query,
                range=asked_range,
                status=int(answer.status),
                sent=sent,
                payload=sent if is_payload else 0,
                authorized="Authorization" in self.headers,
            )
        )

    def _answer(self, path: str, query: str, fault: Fault) -> _Answer:
        match = API.fullmatch(path) or RESOLVE.fullmatch(path)
        if match is None:
            return _error(HTTPStatus.NOT_FOUND)
        repo, revision = match["repo"], match["revision"] or "main"
        is_cdn = match.re is RESOLVE and match["cdn"] is not None
        if not is_cdn and (refusal := self._refusal(repo)):
            return refusal
        if not self.hub.content.has(repo):
            return _error(HTTPStatus.NOT_FOUND, "RepoNotFound")
        found = self.hub.content.find(repo, revision)
        if found is None:
            return _error(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        commit, folder = found
        entries = self.hub.content.entries(folder)
        if match.re is RESOLVE:
            answer = self._file(entries.get(match["path"]), fault, redirect=self.hub.cdn and not is_cdn)
        elif match["what"] == "tree":
            answer = self._tree(entries, query)
        elif match["what"] == "commits":
            answer = self._commits(self.hub.content.commits(repo, commit), query)
        else:
            answer = _json({"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in entries]})
        if not fault.no_commit:
            answer.headers["X-Repo-Commit"] = commit
        return answer

    def _refusal(self, repo: str) -> _Answer | None:
        """Answer to someone who may not see this repo, worded as the Hub does."""
        given = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if repo in self.hub.gated:
            message = f"Access to model {repo} is restricted."
            return _error(HTTPStatus.FORBIDDEN if given else HTTPStatus.UNAUTHORIZED, "GatedRepo", message)
        if self.hub.token is None or given == self.hub.token:
            return None
        if given is None:
            return _error(HTTPStatus.UNAUTHORIZED, "RepoNotFound", "Repository not found")
        return _error(HTTPStatus.UNAUTHORIZED, None, "Invalid credentials in Authorization header")

    def _tree(self, entries: Mapping[str, Entry], query: str) -> _Answer:
        folders = {parent.as_posix() for path in entries for parent in Path(path).parents} - {"."}
        items = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
        items += [entry.tree_item(path) for path, entry in entries.items()]
        start = int(parse_qs(query).get("cursor", ["0"])[0])
        size = self.hub.page_size or len(items)
        return self._page(items, start, size, f"recursive=true&expand=false&cursor={start + size}")

    def _commits(self, items: Sequence[Mapping[str, Any]], query: str) -> _Answer:
        asked = {name: int(values[0]) for name, values in parse_qs(query).items()}
        page, size = asked.get("p", 0), self.hub.page_size or asked.get("limit", 50)
        return self._page(items, page * size, size, f"limit={size}&p={page + 1}")

    def _page(self, items: Sequence[Mapping[str, Any]], start: int, size: int, following: str) -> _Answer:
        answer = _json(items[start : start + size])
        if start + size < len(items):
            answer.headers["Link"] = f'<{self.hub.url}{urlsplit(self.path).path}?{following}>; rel="next"'
        return answer

    def _file(self, entry: Entry | None, fault: Fault, *, redirect: bool) -> _Answer:
        if entry is None:
            return _error(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{entry.etag}"', "Accept-Ranges": "bytes"}
        if entry.sha256:
            headers |= {"X-Linked-Etag": f'"{entry.etag}"', "X-Linked-Size": str(entry.size)}
            if redirect:
                location = f"http://localhost:{self.hub.port}/cdn{quote(unquote(self.path))}"
                return _Answer(HTTPStatus.FOUND, headers | {"Location": location})
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or fault.ignore_range:
            return _Answer(HTTPStatus.OK, headers, entry=entry, stop=entry.size)
        start, stop = int(asked[1]), min(int(asked[2] or entry.size - 1) + 1, entry.size)
        if start >= stop:
            headers["Content-Range"] = f"bytes */{entry.size}"
            return _Answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        return _Answer(HTTPStatus.PARTIAL_CONTENT, headers, entry=entry, start=start, stop=stop)

    def _send(self, answer: _Answer, fault: Fault) -> int:
        """Send the answer; return how many bytes of its body went out."""
        length = answer.stop - answer.start if answer.entry else len(answer.body)
        sent = 0
        try:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command == "HEAD":
                return 0
            if answer.entry is None:
                self.wfile.write(answer.body)
                return length
            with answer.entry.file.open("rb") as file:
                file.seek(answer.start)
                while sent < length:
                    time.sleep(fault.chunk_delay)
                    position = answer.start + sent
                    chunk = bytearray(file.read(min(CHUNK, length - sent)))
                    if not chunk:  # the file shrank
                        self.close_connection = True
                        break
                    if fault.flip is not None and position <= fault.flip < position + len(chunk):
                        chunk[fault.flip - position] ^= 0xFF
                    if fault.drop_after is not None and sent + len(chunk) >= fault.drop_after:
                        self.wfile.write(chunk[: fault.drop_after - sent])
                        self.close_connection = True
                        return fault.drop_after
                    self.wfile.write(chunk)
                    sent += len(chunk)
        except OSError:  # the client went away
            self.close_connection = True
        return sent


def _json(document: Any) -> _Answer:
    return _Answer(HTTPStatus.OK, {"Content-Type": "application/json"}, json.dumps(document).encode())


def _error(status: int, code: str | None = None, message: str | None = None) -> _Answer:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return _Answer(status, {name: value for name, value in headers.items() if value is not None})


def main(args: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a folder as the Hub does.")
    parser.add_argument("folder", metavar="DIR", type=Path, help="holds <org>/<name>/<revision>/…")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    parser.add_argument("--lfs", action="append", metavar="GLOB", help="count these files as LFS too")
    parser.add_argument("--page-size", type=int, help="entries in a page of a tree listing")
    parser.add_argument("--token", help="token that every request must carry")
    parser.add_argument("--gated", action="append", default=[], metavar="REPO", help="a repo that nobody may read")
    parser.add_argument("--cdn", action="store_true", help="redirect LFS files to http://localhost:PORT/cdn/…")
    parser.add_argument("--fault", action="append", type=parse_fault, default=[], help="key=value,… of a Fault")
    options = parser.parse_args(args)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a directory")
    server = HubServer(
        options.folder,
        port=options.port,
        lfs=("*.safetensors", *(options.lfs or ())),
        page_size=options.page_size,
        token=options.token,
        gated=options.gated,
        cdn=options.cdn,
    )
    server.faults = options.fault
    print(f"export HF_ENDPOINT={server.url}", flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        print(f"{len(server.requests)} requests, {server.payload()} bytes of LFS files sent", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
