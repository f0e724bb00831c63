"""A stand-in for the part of GitHub's REST API that serves the issues of one repository."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from support.actions import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TOKEN", "Issues", "serve"]

TOKEN = "secret"  # noqa: S105 - of a made-up server


@dataclass
class Issues:
    """The issues of one repository, as far as GitHub's API serves them."""

    issues: list[dict[str, Any]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    broken: bool = False
    url: str = ""

    def answer(self, method: str, path: str, token: str | None, content: Any) -> tuple[int, Any]:
        """Status and document of one request."""
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Bad credentials"}
        if self.broken:
            return 502, {"message": "Server Error"}
        url = urlsplit(path)
        assert url.path.startswith(f"/repos/{REPOSITORY}/issues")
        if method == "GET":
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            assert query["sort"] == "created"
            assert query["direction"] == "asc"
            return 200, [
                issue
                for issue in self.issues
                if issue["state"] == query["state"] and query["labels"] in issue["labels"]
            ]
        self.changes.append(method)
        if method == "POST":
            self.issues.append({"number": len(self.issues) + 1, "state": "open", **content})
            return 201, self.issues[-1]
        issue = self.issues[int(url.path.rsplit("/", 1)[1]) - 1]
        issue.update(content)
        return 200, issue


@contextmanager
def serve(issues: Issues) -> Iterator[None]:
    """Serve the issues on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = json.loads(self.rfile.read(length)) if length else None
            status, document = issues.answer(self.command, self.path, self.headers.get("Authorization"), content)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = handle_one  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issues.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
