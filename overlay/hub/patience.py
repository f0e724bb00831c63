"""How a request to the Hub is tried again: as late as the Hub asks, and never at the same moment as other hosts.

A Hub that limits the rate (429) is waited for until patience ends, one in trouble (5xx, no connection) a few times. The
client's own waits are the same on every host, so hosts that start together would come back together: answers that it
would wait upon are taken from it before it sees them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import httpx2
from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but re-exported without "as"
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from overlay.hub.hub_cache import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["asked_wait", "patiently"]

PATIENCE = 600.0
"""Seconds that one request waits in all, where the Hub says to wait: two windows of the public rate limit."""

RETRIES = 5
"""How often a request is tried again that met no answer or an error of the server; they take half a minute."""

SECOND = 1.0
"""What a second of waiting takes; a simulation lets time run faster."""

_LONGEST_STEP = 60.0
_LONGEST_STEP_OF_TROUBLE = 8.0
_SHARE = 0.25  # of what the Hub asks to wait: over so much more its hosts come back

_NEVER = 10**9  # seconds; a mirror may ask for more than a float holds
_LONGEST_HEADER = 200

_WAITED_UPON = frozenset({408, 429, 500, 502, 503, 504})

_log = logging.getLogger("huggingface_hub.utils._http")  # where the client would say the same; -v shows it
_chance = random.SystemRandom()  # the global one may be seeded alike on every host
_watched: ContextVar[_Watch | None] = ContextVar("overlay_watched", default=None)
_hooking = threading.Lock()

_in_trouble: set[str] = set()
"""Endpoints whose last answer was none, after all tries."""

T = TypeVar("T")


@dataclass(slots=True)
class _Watch:
    """What is known of the requests that one thread makes through the client."""

    is_download: bool
    unanswered: bool = False


class _PutOffError(Exception):
    """The Hub has answered what is to be tried again."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def patiently(ask: Callable[[], T], *, stop: threading.Event | None = None) -> T:
    """Make a request until it is answered, or patience ends.

    An endpoint that had no answer for the last one, after all tries, is asked only once: each repo of each model would
    else wait for it as long as the first one did.

    Args:
        ask: Makes the request through the client, and tries nothing again by itself.
        stop: Given for a download: ends a wait. What was lost on its way the client then resumes itself, since it
            alone has what came so far.

    Raises:
        HfHubHTTPError: The last answer, if that was one to wait upon.
        httpx2.TransportError: There was none.
    """
    where, is_download = constants.ENDPOINT, stop is not None
    limited = troubled = 0
    waited = 0.0
    try:
        while True:
            failure: Exception
            try:
                with _taking_over(is_download=is_download):
                    answer = ask()
                break
            except _PutOffError as error:
                failure, response = error, error.response
            except httpx2.TransportError as error:
                if is_download:
                    raise
                failure, response = error, None
            if response is not None and response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
                limited += 1
                seconds = _jittered(asked_wait(response), min(_LONGEST_STEP, 2.0**limited))
            else:
                troubled += 1
                asked = None if response is None else asked_wait(response)
                seconds = _jittered(asked, min(_LONGEST_STEP_OF_TROUBLE, 2.0 ** (troubled - 1)))
            waited += seconds
            if where in _in_trouble or troubled > RETRIES or waited > PATIENCE:
                if response is not None:
                    hf_raise_for_status(response)
                raise failure
            found = type(failure).__name__ if response is None else response.status_code
            _log.warning("%s: %s; it is asked again in %.0f s", endpoint(), found, seconds)
            _wait(seconds * SECOND, stop)
    except (httpx2.TransportError, HfHubHTTPError) as error:
        if not isinstance(error, HfHubHTTPError) or error.response.status_code in _WAITED_UPON:
            _in_trouble.add(where)
        raise
    _in_trouble.discard(where)
    return answer


def asked_wait(response: httpx2.Response) -> int | None:
    """Seconds until the Hub wants to be asked again, by its ``RateLimit`` or ``Retry-After``; None if it says nothing.

    A date as ``Retry-After`` is not read: the Hub sends seconds.
    """
    limit = parse_ratelimit_headers(response.headers)
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS and limit is not None and limit.remaining == 0:
        return min(limit.reset_in_seconds, _NEVER)
    text = response.headers.get("Retry-After", "").strip()
    return min(int(text), _NEVER) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_HEADER else None


def _jittered(asked: int | None, step: float) -> float:
    """As long as asked, and then by chance between the half and the whole of a step, which grows with what is asked."""
    floor = float(asked or 0)
    step = max(step, floor * _SHARE)
    return floor + _chance.uniform(step / 2, step)


def _wait(seconds: float, stop: threading.Event | None) -> None:
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)  # the next try then ends by itself


@contextmanager
def _taking_over(*, is_download: bool) -> Iterator[None]:
    """Requests of this thread inside end with :class:`_PutOffError` where the client would wait and ask again."""
    with _hooking:  # each time: the client makes a new session after a lost connection
        session = get_session()
        hooks = session.event_hooks
        if _put_off not in hooks["response"]:
            session.event_hooks = {
                "request": [*hooks["request"], _spread],
                "response": [*hooks["response"], _put_off],
            }
    token = _watched.set(_Watch(is_download))
    try:
        yield
    finally:
        _watched.reset(token)


def _spread(request: httpx2.Request) -> None:
    """Before each request: what the client itself makes again for a download comes a moment later, by chance."""
    watch = _watched.get()
    if watch is None:
        return
    if watch.is_download and (watch.unanswered or "Range" in request.headers):
        _wait(_chance.uniform(0, 1) * SECOND, None)
    watch.unanswered = True


def _put_off(response: httpx2.Response) -> None:
    watch = _watched.get()
    if watch is None:
        return  # a request of someone else in this process
    watch.unanswered = False
    if response.status_code not in _WAITED_UPON:
        return
    for name in ("RateLimit", "RateLimit-Policy"):
        if len(response.headers.get(name, "")) > _LONGEST_HEADER:  # numbers without end break the client
            del response.headers[name]
    if watch.is_download and "Range" in response.request.headers:
        return  # half a file has come, which the client would throw away
    raise _PutOffError(response)
