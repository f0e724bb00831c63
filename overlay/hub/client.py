"""Every request to the Hub, made through its own client. Imports the network stack: only where a request is made.

``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_HOME`` and the rest are read by the client alone.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from huggingface_hub import constants, hf_hub_download, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but re-exported without "as"
    build_hf_headers,
    hf_raise_for_status,
    http_backoff,
    http_stream_backoff,
)

from overlay.errors import TryAgain
from overlay.formats.strict_json import parse_json
from overlay.hub.answers import not_a_hub, reading
from overlay.hub.explain import explained
from overlay.hub.hub_cache import BRANCH, endpoint
from overlay.hub.patience import patiently
from overlay.hub.trees import tree_from_listing
from overlay.registry import COMMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import httpx2

    from overlay.hub.repo import Progress
    from overlay.hub.traffic import Traffic
    from overlay.hub.trees import Tree

__all__ = ["download", "list_tree", "pages", "read_range", "resolve_branch"]

_WORKERS = 8
_MAX_PAGES = 1000  # an endless listing is no listing


def resolve_branch(repo: str, traffic: Traffic | None = None) -> str:
    """The commit that ``main`` is at; one request.

    Args:
        traffic: Counts what is received, here and below.

    Raises:
        OverlayError: As ``explained``.
    """
    where = f"{repo}@{BRANCH}"
    with explained(repo, BRANCH):
        answer = _get(f"/api/models/{repo}/revision/{BRANCH}", traffic).content
        with reading("description of a repo", where):
            commit = parse_json(answer, where)["sha"]
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            found = repr(commit)[:80]
            raise not_a_hub(f"{where}: {endpoint()} names the commit {found}, expected 40 hex digits", where)
    return commit


def list_tree(repo: str, commit: str, traffic: Traffic | None = None) -> Tree:
    """Every file of a repo at a commit; one request for each thousand files.

    Raises:
        OverlayError: As ``explained``, and as ``trees.tree_from_listing``.
    """
    where = f"{repo}@{commit[:12]}"
    with explained(repo, commit):
        target = f"/api/models/{repo}/tree/{quote(commit, safe='')}?recursive=true&expand=false"
        return tree_from_listing(pages(target, where, traffic), where)


def pages(target: str, where: str, traffic: Traffic | None = None) -> Iterator[bytes]:
    """The pages of a listing, one request each; to be iterated inside ``explained``.

    Args:
        target: Path and query of the first one.
        where: How messages name what is listed.

    Raises:
        Refused: It does not end, or leads elsewhere than to a page of the Hub (``not-a-hub``).
    """
    for _ in range(_MAX_PAGES):
        response = _get(target, traffic)
        yield response.content
        following = response.links.get("next", {}).get("url")
        if following is None:
            return
        with reading("page of a listing", where):
            # Only path and query are taken over: a mirror may name the host that it mirrors, and the token goes there.
            parts = urlsplit(following)
            path = parts.path.removeprefix(urlsplit(constants.ENDPOINT).path)
            if not path.startswith("/"):
                raise ValueError(f"next page {following!r}")
        target = f"{path}?{parts.query}"
    raise not_a_hub(f"{where}: the listing does not end after {_MAX_PAGES} pages", where)


def _get(target: str, traffic: Traffic | None) -> httpx2.Response:
    """The answer to a question to the Hub's API."""
    # The client's own functions for it have no time limit, so an endpoint that never answers would hang them for good.
    url = constants.ENDPOINT + target

    def ask() -> httpx2.Response:
        return http_backoff(
            "GET", url, max_retries=0, headers=build_hf_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )

    response = patiently(ask)
    if traffic is not None:
        traffic.add(response.num_bytes_downloaded)
    hf_raise_for_status(response)
    return response


def read_range(repo: str, commit: str, path: str, start: int, nbytes: int, traffic: Traffic | None = None) -> bytes:
    """Exactly ``nbytes`` of a file from ``start``; one request, and no more than that is read.

    Raises:
        OverlayError: As ``explained``.
    """
    if nbytes == 0:
        return b""
    with explained(repo, commit, path):
        return patiently(lambda: _read_range(repo, commit, path, start, nbytes, traffic))


def _read_range(repo: str, commit: str, path: str, start: int, nbytes: int, traffic: Traffic | None) -> bytes:
    url = hf_hub_url(repo, path, revision=commit)
    headers = build_hf_headers() | {"Range": f"bytes={start}-{start + nbytes - 1}", "Accept-Encoding": "identity"}
    # The client's retries by exception cannot cope with one that comes from the body.
    request = http_stream_backoff(
        "GET", url, max_retries=0, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, retry_on_exceptions=()
    )
    data = bytearray()
    with request as response:
        hf_raise_for_status(response)
        # An endpoint may ignore the range and send the file from its start.
        skip = start if response.status_code == HTTPStatus.OK else 0
        for chunk in response.iter_bytes():
            data += chunk
            if traffic is not None:
                traffic.add(len(chunk))
            if len(data) >= skip + nbytes:
                break
    if len(data) < skip + nbytes:
        raise TryAgain(
            f"{repo}@{commit[:12]}/{path}: {len(data)} bytes came, expected {nbytes} from offset {start}",
            code="wrong-length",
            hint="run the same command again",
        )
    return bytes(data[skip : skip + nbytes])


def download(
    repo: str,
    commit: str,
    paths: Collection[str],
    progress: Progress | None,
    traffic: Traffic | None = None,
    *,
    anew: bool = False,
) -> None:
    """Bring files into the Hub's cache, several at once. The first failure stops the others.

    Args:
        anew: Replace what is there already, in one step.

    Raises:
        OverlayError: As ``explained``.
    """
    stop = threading.Event()
    meter = _meter(progress, stop, traffic)
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="overlay-download")
    try:
        for done in as_completed([pool.submit(_download_one, repo, commit, path, meter, anew, stop) for path in paths]):
            done.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _download_one(
    repo: str,
    commit: str,
    path: str,
    meter: Any,
    anew: bool,  # noqa: FBT001  # private
    stop: threading.Event,
) -> None:
    def ask() -> None:
        if stop.is_set():
            raise _StoppedError
        hf_hub_download(repo, path, revision=commit, tqdm_class=meter, force_download=anew)

    with explained(repo, commit, path):
        patiently(ask, stop=stop)


class _StoppedError(Exception):
    """Another download failed, or the user interrupted."""


def _meter(progress: Progress | None, stop: threading.Event, traffic: Traffic | None) -> type:
    """A stand-in for the client's progress bars: it prints nothing, counts bytes, and ends a download when asked to."""

    class Meter:
        total: float | None = None

        def __init__(self, *_args: Any, total: float | None = None, **_options: Any) -> None:
            self.total = total

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, nbytes: float | None = 1) -> None:
            if stop.is_set():
                raise _StoppedError
            if progress is not None and nbytes:
                progress(int(nbytes))
            if traffic is not None and nbytes and nbytes > 0:  # what was lost has come all the same
                traffic.add(int(nbytes))

        def update_transfer(self, _nbytes: float | None = 1) -> None:
            """Bytes on the wire, where the client tells them apart from bytes of the file."""

        def _ignore(self, *_args: Any, **_options: Any) -> None:
            pass

        close = refresh = set_postfix_str = set_transfer_postfix_str = set_description_str = _ignore

    return Meter
