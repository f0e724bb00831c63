"""Wheels of plain Python that an overlay's script imports: from a folder, the entry's address or the package index.

No token is ever sent along: a wheel comes from no repo of the Hub.
"""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from overlay.errors import BrokenInput, NotHere, Refused, TryAgain
from overlay.fingerprint import bytes_digest
from overlay.formats.local import read_small_file
from overlay.hub.hub_cache import is_offline

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from overlay.registry import Wheel

__all__ = ["MAX_WHEEL", "read_wheel", "wheel_url"]

MAX_WHEEL = 256 * 2**20
"""Bytes of a wheel at most: plain Python is small."""

_PATIENCE = 30.0
_LONGEST = 900.0
"""Seconds for the whole of a wheel: the largest at 2.4 Mbit/s."""

_MOST_REDIRECTS = 5
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_BUSY = 429


def wheel_url(wheel: Wheel) -> str:
    """Where a wheel is asked for: the entry's address, else the package index's by the wheel's name."""
    if wheel.url is not None:
        return wheel.url
    project, *_, tags = wheel.name.removesuffix(".whl").split("-", 2)
    python = tags.removesuffix("-none-any").rpartition("-")[2]
    return f"https://files.pythonhosted.org/packages/{python}/{project[0]}/{project}/{wheel.name}"


def read_wheel(wheel: Wheel, *, hub: Path | None, offline: bool) -> bytes:
    """The bytes of a wheel, held against its digest.

    Args:
        hub: Folder that stands for the Hub; its folder ``wheels`` holds wheels.
        offline: Make no request.

    Raises:
        NotHere: It is not in that folder, or it would have to be asked for.
        BrokenInput: It is another file.
        OverlayError: It cannot be had from its address.
    """
    if hub is not None:
        where, data = str(hub / "wheels" / wheel.name), _in_folder(hub, wheel)
    elif offline or is_offline():
        raise NotHere(
            f"{wheel.name}: not on this host",
            code="not-cached",
            hint="run it once with a connection (without --offline, HF_HUB_OFFLINE unset)",
            missing=[wheel.name],
        )
    else:
        where = wheel_url(wheel)
        data = _download(where, wheel)
    found = bytes_digest(data, "sha256").partition(":")[2]
    if found != wheel.sha256:
        raise BrokenInput(
            f"{where}: has sha256 {found}, pinned is {wheel.sha256}",
            code="digest-mismatch",
            hint="correct the sha256 or the url in the entry's needs, if this is the wheel that you mean",
            where=where,
            found=found,
            expected=wheel.sha256,
        )
    return data


def _in_folder(hub: Path, wheel: Wheel) -> bytes:
    path = hub / "wheels" / wheel.name
    try:
        return read_small_file(path, MAX_WHEEL)
    except NotHere as error:
        raise NotHere(
            f"{path}: no such wheel",
            code="no-such-file",
            hint=f"put it there: curl -fLo {path} {wheel_url(wheel)}",
            where=str(path),
        ) from error


def _download(url: str, wheel: Wheel) -> bytes:
    """In a thread of its own: where a server sends byte after byte, each single wait is short, and all are endless."""
    answers: list[bytes | BaseException] = []

    def download() -> None:
        try:
            answers.append(_followed(url, wheel, time.monotonic() + _LONGEST))
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            answers.append(error)

    thread = Thread(target=download, daemon=True)
    thread.start()
    thread.join(_LONGEST)
    answer = answers[0] if answers else _lost(url, f"not all of it came within {_LONGEST:.0f} seconds", wheel)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _followed(url: str, wheel: Wheel, end: float) -> bytes:
    """What lies at an address or where that leads, until ``end``.

    Raises:
        Refused: It leads nowhere, or to where no wheel is asked for.
    """
    import httpx2  # the network stack, only where a request is made

    at = url
    try:
        for _ in range(_MOST_REDIRECTS):
            with httpx2.stream("GET", at, timeout=_PATIENCE) as response:
                if response.next_request is None:
                    return _received(response, at, wheel, end)
                to = str(response.next_request.url)
            if not _may_lead_to(to, url):
                raise _refused(url, f"leads to {to}, expected an https address on the public internet")
            at = to
    except httpx2.HTTPError as error:
        raise _lost(at, str(error) or type(error).__name__, wheel) from error
    raise _refused(url, f"leads on and on, more than {_MOST_REDIRECTS} times")


def _received(response: httpx2.Response, url: str, wheel: Wheel, end: float) -> bytes:
    status, data = response.status_code, bytearray()
    if status >= _SERVER_ERROR or status == _BUSY:
        raise TryAgain(f"{url}: answers {status}", code="hub-unavailable", hint="run the same command again", where=url)
    if status >= _CLIENT_ERROR:
        raise _refused(url, f"answers {status}, so there is no such wheel for us", status)
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) > MAX_WHEEL:
            raise BrokenInput(
                f"{url}: more than {MAX_WHEEL} bytes, expected a wheel of plain Python",
                code="too-large",
                hint="correct the url in the entry's needs",
                where=url,
            )
        if time.monotonic() > end:  # nobody waits for it any more
            raise _lost(url, "it came too slowly", wheel)
    return bytes(data)


def _may_lead_to(url: str, first: str) -> bool:
    """Whether a redirect is followed: not into networks that only this host reaches, but for the entry's own host.

    What a host's name stands for may change until it is asked; the certificate is then still the name's.
    """
    to, own = urlsplit(url), urlsplit(first)
    if (to.scheme, to.hostname) == (own.scheme, own.hostname):
        return True
    if to.scheme != "https" or to.hostname is None:
        return False
    try:
        found = socket.getaddrinfo(to.hostname, to.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True  # a proxy may know it; else the request says so
    return all(ip_address(str(address[0]).partition("%")[0]).is_global for *_, address in found)


def _lost(url: str, why: str, wheel: Wheel) -> TryAgain:
    return TryAgain(
        f"{url}: {why}",
        code="connection-lost",
        hint=f"run the same command again, or bring the wheel yourself: --hub DIR with DIR/wheels/{wheel.name}",
        where=url,
    )


def _refused(url: str, why: str, status: int | None = None) -> Refused:
    return Refused(
        f"{url}: {why}",
        code="wheel-refused",
        hint="give the wheel's url in the entry's needs",
        where=url,
        status=status,
    )
