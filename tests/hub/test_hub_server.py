"""The server itself: what the Hub answers, byte by byte."""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import hub_server
import pytest
from hub_faults import Fault, parse_fault
from hub_server import HubServer
from support.hubs import add_repo, commit, shard

from overlay.fingerprint import git_blob_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

FILE = f"/org/base/resolve/{commit('a')}"
TREE = f"/api/models/org/base/tree/{commit('a')}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    """A repo with a small file and an LFS file."""
    add_repo(tmp_path, "org/base", commit("a"), {"d/x.json": "[1]", "w.safetensors": shard("a")})
    with HubServer(tmp_path) as server:
        yield server


def ask(server: HubServer, method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_lists_files_and_folders(server: HubServer) -> None:
    """Small files by git's digest, LFS files with their sha256 beside that of their pointer."""
    status, headers, body = ask(server, "GET", f"{TREE}?recursive=true&expand=false")

    data = shard("a")
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n".encode()
    assert (status, headers["X-Repo-Commit"]) == (200, commit("a"))
    assert json.loads(body) == [
        {"type": "directory", "path": "d", "size": 0, "oid": "0" * 40},
        {"type": "file", "path": "d/x.json", "size": 3, "oid": git_blob_digest(b"[1]").removeprefix("sha1-git:")},
        {
            "type": "file",
            "path": "w.safetensors",
            "size": len(data),
            "oid": git_blob_digest(pointer).removeprefix("sha1-git:"),
            "lfs": {"oid": sha256, "size": len(data), "pointerSize": len(pointer)},
        },
    ]


def test_lists_commits(server: HubServer, tmp_path: Path) -> None:
    """Commits newest first, from the one that is asked for back: as their folders came, or as told."""
    add_repo(tmp_path, "org/base", commit("b"), {"x": "1"})
    server.content.branches["org/base"] = commit("b")
    base = "/api/models/org/base/commits"

    def ids(revision: str) -> list[str]:
        return [item["id"] for item in json.loads(ask(server, "GET", f"{base}/{revision}?limit=10")[2])]

    assert ids("main") == [commit("b"), commit("a")]
    assert ids(commit("a")) == [commit("a")]
    server.content.history["org/base"] = {commit("a"): "Go back", commit("b"): "First"}
    assert ids("main") == [commit("a"), commit("b")]
    status, headers, body = ask(server, "GET", f"{base}/main?limit=1")
    assert (status, headers["Link"]) == (200, f'<{server.url}{base}/main?limit=1&p=1>; rel="next"')
    assert json.loads(body)[0] | {"authors": None} == {
        "id": commit("a"),
        "title": "Go back",
        "message": "",
        "authors": None,
        "date": "2026-09-30T00:00:00.000Z",
    }


def test_lists_in_pages(server: HubServer) -> None:
    """Each page but the last links to the next."""
    server.page_size = 2

    _, headers, first = ask(server, "GET", f"{TREE}?recursive=true")
    link = headers["Link"].removeprefix(f"<{server.url}").removesuffix('>; rel="next"')
    _, headers, second = ask(server, "GET", link)

    assert [item["path"] for item in json.loads(first) + json.loads(second)] == ["d", "d/x.json", "w.safetensors"]
    assert headers["Link"] is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_describes_a_file(server: HubServer, method: str) -> None:
    """HEAD and GET carry the same headers; only GET has the body."""
    data = shard("a")
    status, headers, body = ask(server, method, f"{FILE}/w.safetensors")

    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    assert (status, headers["ETag"], headers["X-Linked-Etag"]) == (200, etag, etag)
    assert headers["Content-Length"] == headers["X-Linked-Size"] == str(len(data))
    assert body == (data if method == "GET" else b"")
    assert server.payload() == len(body)


@pytest.mark.parametrize(
    ("asked", "status", "content", "says"),
    [
        ("bytes=0-0", 206, b"[", "bytes 0-0/3"),
        ("bytes=1-", 206, b"1]", "bytes 1-2/3"),
        ("bytes=1-100", 206, b"1]", "bytes 1-2/3"),
        ("bytes=3-", 416, b"", "bytes */3"),
        ("lines=1-2", 200, b"[1]", None),
    ],
)
def test_serves_ranges(server: HubServer, asked: str, status: int, content: bytes, says: str | None) -> None:
    """Ranges are inclusive, clipped, and refused where they hold nothing."""
    found, headers, body = ask(server, "GET", f"{FILE}/d/x.json", Range=asked)

    assert (found, body, headers["Content-Range"]) == (status, content, says)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/models/org/none", 404, "RepoNotFound"),
        ("/api/models/org/..", 404, "RepoNotFound"),
        (f"/api/models/org/base/tree/{commit('b')}", 404, "RevisionNotFound"),
        (f"{FILE}/none", 404, "EntryNotFound"),
        (f"{FILE}/../{commit('a')}/d/x.json", 404, "EntryNotFound"),
        ("/somewhere", 404, None),
        ("/api/models/org/base/revision/main", 200, None),
        ("/api/models/org/base", 200, None),
    ],
)
def test_answers_with_the_codes_of_the_hub(server: HubServer, path: str, status: int, code: str | None) -> None:
    """What is missing is told apart by ``X-Error-Code``."""
    found, headers, body = ask(server, "GET", path)

    assert (found, headers["X-Error-Code"]) == (status, code)
    if status == 200:
        assert json.loads(body)["sha"] == commit("a")


def test_main_is_the_only_or_the_given_revision(server: HubServer) -> None:
    """With several revisions somebody has to say which."""
    add_repo(server.content.folder, "org/base", commit("b"), {"x": ""})
    assert ask(server, "GET", "/api/models/org/base")[1]["X-Error-Code"] == "RevisionNotFound"

    server.content.branches["org/base"] = commit("b")
    assert json.loads(ask(server, "GET", "/api/models/org/base")[2])["sha"] == commit("b")


def test_a_revision_that_is_no_commit_gets_one(server: HubServer) -> None:
    """A folder ``main`` can be pinned by the commit that the server makes up."""
    add_repo(server.content.folder, "org/new", "main", {"x": "1"})

    sha = json.loads(ask(server, "GET", "/api/models/org/new")[2])["sha"]

    assert ask(server, "GET", f"/org/new/resolve/{sha}/x")[2] == b"1"


def test_faults_strike_as_often_as_told(server: HubServer) -> None:
    """In the order in which they were added, each only where it matches."""
    server.fault(method="GET", path="*/x.json", status=503, times=1)
    server.fault(method="GET", path="*/x.json", flip=1, times=1)

    answers = [ask(server, "GET", f"{FILE}/d/x.json") for _ in range(3)]

    assert [(status, body) for status, _, body in answers] == [(503, b""), (200, b"[\xce]"), (200, b"[1]")]
    assert [request.status for request in server.asked("GET", "*/x.json")] == [503, 200, 200]


def test_a_dropped_body_ends_early(server: HubServer) -> None:
    """The announced length is not reached."""
    server.fault(path="*/x.json", drop_after=2)

    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(server, "GET", f"{FILE}/d/x.json")

    assert caught.value.partial == b"[1"


def test_reads_faults_from_the_command_line() -> None:
    """Every attribute can be given; mistakes are named."""
    fault = parse_fault("path=*/resolve/*,status=503,times=2,delay=0.5,no_commit=true")

    assert fault == Fault(path="*/resolve/*", status=503, times=2, delay=0.5, no_commit=True)
    with pytest.raises(argparse.ArgumentTypeError, match="'stat' is none of method, path"):
        parse_fault("stat=1")
    with pytest.raises(argparse.ArgumentTypeError, match="status=x"):
        parse_fault("status=x")


def test_runs_as_a_script(server: HubServer) -> None:
    """It prints what to export, then serves."""
    command = [sys.executable, hub_server.__file__, str(server.content.folder), "--fault", "status=418,path=/tea"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("export HF_ENDPOINT=http://127.0.0.1:")
        connection = http.client.HTTPConnection("127.0.0.1", int(url), timeout=5)
        connection.request("GET", "/tea")
        status = connection.getresponse().status
        connection.close()
        process.terminate()

    assert status == 418
