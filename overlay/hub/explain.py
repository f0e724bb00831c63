"""The client's many exceptions as the few errors of this program.

Messages are worded here, never taken over: the client's own name request ids, signed addresses and Python classes, and
some of its network errors quote request headers.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, errors, get_token

from overlay.errors import InvalidUsage, NotHere, OverlayError, Refused, TryAgain
from overlay.formats.os_errors import cannot_read, cannot_write, meaning_of
from overlay.hub.answers import not_a_hub
from overlay.hub.hub_cache import endpoint
from overlay.hub.patience import asked_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.errors import CannotWrite

__all__ = ["explained"]

_AGAIN = "run the same command again; files that are complete are kept"


@contextmanager
def explained(repo: str, revision: str, path: str | None = None) -> Iterator[None]:
    """Requests made inside fail with an :class:`OverlayError` that names the repo, the file and the endpoint.

    Raises:
        Refused: Not found, gated, unauthorised, vanished, or no Hub.
        TryAgain: Rate limit, server errors, lost or refused connections, names that do not resolve, time-outs.
        NotHere: ``HF_HUB_OFFLINE`` is set.
        CannotWrite: The Hub's cache is full or may not be written.
        InvalidUsage: The token or the endpoint cannot be used as it is.
    """
    at = f"{repo}@{revision[:12]}" + (f"/{path}" if path else "")
    _check_token(at)
    try:
        yield
    except OverlayError:
        raise
    except Exception as error:
        explanation = next((found for cause in _causes(error) if (found := _explain(cause, at, repo, revision))), None)
        if explanation is None:
            raise
        explanation.data |= {"where": at, "repo": repo, "revision": revision, "endpoint": endpoint()}
        raise explanation from error


def _check_token(at: str) -> None:
    """Refuse a token out of reach, and one that no header can carry: the network errors it would cause quote it."""
    try:
        token = get_token()
    except OSError as error:
        if error.filename is None:  # no file, but the exchange of one token for another
            raise
        where = constants.HF_TOKEN_PATH
        if error.errno == errno.ENOTDIR:
            elsewhere = f"name a folder: HF_HOME is {constants.HF_HOME}"
            raise cannot_write(error, at, f"look for the Hub token {where}", elsewhere=elsewhere) from error
        raise cannot_read(error, where, look=f"ls -l {where}") from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise InvalidUsage(
            f"{at}: the Hub token (HF_TOKEN, or the file that hf auth login wrote) has characters that no token has",
            code="bad-token",
            hint="copy the token again from the Hub's settings page, then: hf auth login",
        )


def _causes(error: BaseException, *, implied: bool = False) -> Iterator[BaseException]:
    """The error and what it was raised from; ``implied``: also what was being handled when it was raised."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (cause.__context__ if implied else None)


def _explain(  # noqa: C901, PLR0911, PLR0912  # one line a kind
    error: BaseException, at: str, repo: str, revision: str
) -> OverlayError | None:

    source = _source()
    match error:
        case errors.HfHubHTTPError():
            return _status(error, at, repo, revision)
        case errors.FileMetadataError():
            return _no_metadata(error, at)
        case errors.OfflineModeIsEnabled():
            return NotHere(f"{at}: not cached, and HF_HUB_OFFLINE is set", code="offline", hint="unset HF_HUB_OFFLINE")
        case errors.HFValidationError():
            return InvalidUsage(f"{at}: {repo!r} is no repo id", code="invalid-repo-id", hint="write it as ORG/NAME")
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() if _is_address(constants.ENDPOINT):
            return not_a_hub(f"{at}: {source} redirects to what is no address of the web", at)
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return InvalidUsage(
                f"{at}: HF_ENDPOINT={endpoint()} is no address", code="bad-endpoint", hint="write it as https://HOST"
            )
        case httpx2.TimeoutException():
            hint = f"{_AGAIN}, or give it longer: HF_HUB_DOWNLOAD_TIMEOUT=60"
            return TryAgain(f"{at}: no answer in time from {source}", code="timeout", hint=hint)
        case httpx2.ProxyError():
            hint = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            return TryAgain(f"{at}: the proxy on the way to {source} failed", code="proxy", hint=hint)
        case httpx2.TooManyRedirects():
            return Refused(f"{at}: {source} redirects in a circle", code="redirect-loop", hint="check HF_ENDPOINT")
        case httpx2.ConnectError():
            return _no_connection(error, at)
        case httpx2.RequestError():
            return TryAgain(f"{at}: the connection to {source} was lost", code="connection-lost", hint=_AGAIN)
        case OSError() if str(error).startswith("Consistency check failed"):
            message = f"{at}: {source} sent fewer or more bytes than it announced"
            return TryAgain(message, code="wrong-length", hint=_AGAIN)
        case OSError():
            return _system(error, at)
        case RecursionError():  # the client reads what it is refused with, however deeply that is nested
            return not_a_hub(f"{at}: {source} answers what cannot be read", at)
        case _ if "No space left on device" in str(error):  # what the Rust side of the client has left of it
            return _system(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), at)
        case _:
            return None


def _status(error: errors.HfHubHTTPError, at: str, repo: str, revision: str) -> OverlayError:  # noqa: C901, PLR0911  # one a kind

    response, source = error.response, _source()
    status = response.status_code
    has_token = "authorization" in response.request.headers
    facts: dict[str, Any] = {"status": status, "authorized": has_token}
    login = "log in with: hf auth login, or set HF_TOKEN"
    match error:
        case errors.GatedRepoError():
            who = "the token's owner has not been let in" if has_token else "no token was sent"
            hint = f"accept the terms at {endpoint()}/{repo}" + ("" if has_token else f", then {login}")
            return Refused(f"{at}: the repo is gated and {who} ({status})", code="gated", hint=hint, **facts)
        case _ if status == HTTPStatus.UNAUTHORIZED and has_token:
            hint = "see which token is in force with: hf auth whoami; HF_TOKEN wins over hf auth login"
            return Refused(f"{at}: {source} rejects the token (401)", code="token-rejected", hint=hint, **facts)
        case _ if status == HTTPStatus.UNAUTHORIZED:
            message = f"{at}: {source} shows it to nobody without a token (401): private, gated, or no such repo"
            return Refused(message, code="token-needed", hint=f"check the name, then {login}", **facts)
        case errors.RevisionNotFoundError():
            message = (
                f"{at}: the repo is there, but the commit {revision} has vanished (404):"
                " its history was rewritten, or the pin was never right"
            )
            hint = f"pin a commit that exists, see {endpoint()}/{repo}/commits/main"
            return Refused(message, code="vanished-commit", hint=hint, **facts)
        case errors.EntryNotFoundError():
            hint = f"see what is there: {endpoint()}/{repo}/tree/{revision}"
            return Refused(f"{at}: no such file at this commit (404)", code="no-such-file", hint=hint, **facts)
        case errors.RepositoryNotFoundError():
            message = (
                f"{at}: {source} has no such repo, or none that {'the token' if has_token else 'everybody'} may see"
            )
            hint = f"check the name: {endpoint()}/{repo}" + ("" if has_token else f"; if it is private, {login}")
            return Refused(f"{message} ({status})", code="repo-not-found", hint=hint, **facts)
        case errors.DisabledRepoError():
            return Refused(f"{at}: the repo was disabled by the Hub", code="repo-disabled", hint=None, **facts)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        seconds = asked_wait(response)
        wait = "wait some minutes" if seconds is None else f"wait {seconds} seconds"
        hint = f"{wait}, then {_AGAIN}" + ("" if has_token else "; a token raises the limit: hf auth login")
        return TryAgain(f"{at}: {source} limits the rate of requests (429)", code="rate-limited", hint=hint, **facts)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return TryAgain(f"{at}: {source} is in trouble ({status})", code="hub-unavailable", hint=_AGAIN, **facts)
    if status == HTTPStatus.FORBIDDEN:
        hint = f"check what the token may read: {endpoint()}/settings/tokens" if has_token else login
        return Refused(f"{at}: {source} forbids access (403)", code="forbidden", hint=hint, **facts)
    return Refused(f"{at}: {source} refuses ({status})", code="hub-refused", hint="check HF_ENDPOINT", **facts)


def _no_metadata(error: BaseException, at: str) -> Refused:
    """An endpoint that answers, but not as a Hub does: mostly a mirror that redirects away."""
    header = next((name for name in ("X-Repo-Commit", "ETag", "Content-Length") if name in str(error)), "X-Repo-Commit")
    return Refused(
        f"{at}: {_source()} answers without the header {header}, so what it serves cannot be tied to the commit",
        code="no-hub-headers",
        hint="your connection works: HF_ENDPOINT must name a complete mirror of the Hub, or be unset",
        header=header,
    )


def _no_connection(error: BaseException, at: str) -> TryAgain:
    if any(isinstance(cause, socket.gaierror) for cause in _causes(error, implied=True)):
        host = urlsplit(endpoint()).hostname
        hint = "check the spelling of HF_ENDPOINT, DNS and the network; without one: --offline or --hub DIR"
        return TryAgain(f"{at}: the name {host} of {_source()} does not resolve", code="name-not-resolved", hint=hint)
    hint = "check HF_ENDPOINT, the network and its proxies; without one: --offline or --hub DIR"
    return TryAgain(f"{at}: no connection to {_source()}", code="no-connection", hint=hint)


def _system(error: OSError, at: str) -> CannotWrite | None:
    """A write into the Hub's cache that failed."""
    if meaning_of(error) is None or error.errno == errno.ENOENT:
        return None
    cache = constants.HF_HUB_CACHE
    if error.errno == errno.EEXIST:  # of a folder that was to be made, so what exists there is none
        error = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename)
    place = f"{error.filename} of " if error.filename and str(error.filename) != cache else ""
    elsewhere = "move the Hub's cache: HF_HOME=/where/it/can/be/written"
    return cannot_write(error, at, f"write into {place}the Hub's cache {cache}", elsewhere=elsewhere, cache=cache)


def _is_address(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _source() -> str:
    """The endpoint as a message names it: with the variable that set it, if one did."""
    shown = endpoint()
    return shown if constants.ENDPOINT == "https://huggingface.co" else f"HF_ENDPOINT={shown}"
