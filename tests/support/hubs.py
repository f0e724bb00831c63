"""Small hub folders, and the real client turned to a server on this machine."""

from __future__ import annotations

import functools
import json
import ssl
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import huggingface_hub.file_download
import huggingface_hub.utils._http
from huggingface_hub import close_session, constants
from support.tensors import entry, raw_file

from overlay.hub import patience

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest
    from hub_server import HubServer

__all__ = ["add_repo", "client_of", "commit", "shard"]


def commit(digit: str) -> str:
    """A commit that is easy to tell apart: 40 times one hex digit."""
    return digit * 40


def add_repo(hub: Path, repo: str, revision: str, files: Mapping[str, bytes | str]) -> Path:
    """Write ``<hub>/<repo>/<revision>/…``; returns the folder of the revision."""
    folder = hub / repo / revision
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def shard(*names: str, nbytes: int = 16) -> bytes:
    """A safetensors file with one U8 tensor for each name, its bytes all different from its neighbours'."""
    entries = {name: entry("U8", [nbytes], i * nbytes, (i + 1) * nbytes) for i, name in enumerate(names)}
    return raw_file(json.dumps(entries), b"".join(bytes([i + 1]) * nbytes for i in range(len(names))))


# Nothing here is encrypted, and reading the certificates takes longer than most tests.
_default_context = functools.cache(ssl.create_default_context)


@contextmanager
def client_of(server: HubServer | str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
    """Turn the client of this process to a server, with an empty cache, no token, and no waiting between tries."""
    url = server if isinstance(server, str) else server.url
    impatient: Any = SimpleNamespace(sleep=lambda _seconds: None)
    with monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "token"))
        patch.setattr(patience, "_in_trouble", set())
        patch.setattr(patience, "SECOND", 0.0)
        patch.setattr(ssl, "create_default_context", _default_context)
        patch.setattr(huggingface_hub.utils._http, "time", impatient)
        patch.setattr(huggingface_hub.file_download, "time", impatient)
        close_session()
        try:
            yield
        finally:
            close_session()
