"""Wheels of plain Python that an overlay's script imports: from a folder, the entry's address or the package index.

No token is ever sent along: a wheel comes from no repo of the Hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, NotHere, Refused, TryAgain
from overlay.fingerprint import bytes_digest
from overlay.formats.local import read_small_file
from overlay.hub.hub_cache import is_offline

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry import Wheel

__all__ = ["MAX_WHEEL", "read_wheel", "wheel_url"]

MAX_WHEEL = 256 * 2**20
"""Bytes of a wheel at most: plain Python is small."""

_PATIENCE = 30.0
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
    import httpx2  # the network stack, only where a request is made

    data = bytearray()
    try:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=_PATIENCE) as response:
            if response.status_code >= _CLIENT_ERROR:
                raise _refused(url, response.status_code)
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_WHEEL:
                    raise BrokenInput(
                        f"{url}: more than {MAX_WHEEL} bytes, expected a wheel of plain Python",
                        code="too-large",
                        hint="correct the url in the entry's needs",
                        where=url,
                    )
    except httpx2.HTTPError as error:
        raise TryAgain(
            f"{url}: {error or type(error).__name__}",
            code="connection-lost",
            hint=f"run the same command again, or bring the wheel yourself: --hub DIR with DIR/wheels/{wheel.name}",
            where=url,
        ) from error
    return bytes(data)


def _refused(url: str, status: int) -> Refused | TryAgain:
    if status >= _SERVER_ERROR or status == _BUSY:
        return TryAgain(
            f"{url}: answers {status}", code="hub-unavailable", hint="run the same command again", where=url
        )
    return Refused(
        f"{url}: answers {status}, so there is no such wheel for us",
        code="wheel-refused",
        hint="give the wheel's url in the entry's needs",
        where=url,
        status=status,
    )
