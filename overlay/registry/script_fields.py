"""What an entry says of the overlay's own Python: which script, which wheels it imports, how much it may take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from overlay.formats.wording import format_bytes, parse_size
from overlay.registry.entries import ScriptLimits
from overlay.registry.fields import Fields, wrong

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

__all__ = ["LimitsFields", "PythonFields", "ScriptFields", "WheelFields"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[0-9][A-Za-z0-9_.!+]*(-[0-9][A-Za-z0-9_.]*)?-(py2\.)?py3-none-any\.whl")
_URL = re.compile(r"https://[^/@\s]+/\S*")
_TIME = re.compile(r"([0-9]{1,9}) ?([smhd]?)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LONGEST_TEXT = 80
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 7 * 86400  # a script that runs for a week will not end
_MOST_PROCESSES = 65_536
_LEAST, _MOST = 64 * 10**6, 2**53  # bytes: the interpreter alone takes 10 MB; beyond that no disk of one host goes


def _check_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise wrong("not-a-sha256", f"{text[:80]!r} is no sha256; expected 64 lower-case hex digits", "sha256sum FILE")
    return text


def _check_wheel(name: str) -> str:
    if not _WHEEL.fullmatch(name):
        raise wrong(
            "not-a-wheel",
            f"{name[:200]!r} is no name of a wheel of plain Python; expected NAME-VERSION-py3-none-any.whl",
            "a wheel with compiled code cannot be brought along; what is installed here can be imported anyway",
        )
    return name


def _check_url(url: str) -> str:
    if not _URL.fullmatch(url) or not url.isprintable():
        raise wrong("not-a-url", f"{url[:200]!r} is no address of a file; expected https://HOST/PATH")
    return url


def _size(text: object) -> int:
    size = parse_size(str(text)[:_LONGEST_TEXT])
    if not size:
        raise _no_limit(text, "no size", "bytes or a unit, as in 64GiB or 500MB")
    if not _LEAST <= size <= _MOST:
        raise _no_limit(text, "no size for a script", f"{format_bytes(_LEAST)} to {format_bytes(_MOST)}")
    return size


def _time(text: object) -> int:
    match = _TIME.fullmatch(str(text))
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not seconds:
        raise _no_limit(text, "no time", "seconds or a unit, as in 90m or 4h")
    if seconds > _LONGEST:
        raise _no_limit(text, "more than a script may take", "at most 7d")
    return seconds


def _number(text: object) -> int:
    if not _NUMBER.fullmatch(str(text)) or not 0 < int(str(text)) <= _MOST_PROCESSES:
        raise _no_limit(text, "no number of processes", f"1 to {_MOST_PROCESSES}")
    return int(str(text))


def _no_limit(text: object, what: str, expected: str) -> PydanticCustomError:
    return wrong("not-a-limit", f"{str(text)[:_LONGEST_TEXT]!r} is {what}; expected {expected}")


Sha256 = Annotated[str, AfterValidator(_check_sha256)]
Size = Annotated[int, BeforeValidator(_size)]
Seconds = Annotated[int, BeforeValidator(_time)]
Number = Annotated[int, BeforeValidator(_number)]


class ScriptFields(Fields):
    """The script that may run; the manifest says where it lies."""

    sha256: Sha256


class LimitsFields(Fields):
    """What it may take."""

    time: Seconds | None = None
    memory: Size | None = None
    processes: Number | None = None
    disk: Size | None = None


class PythonFields(Fields):
    """The overlay's own materializer script; without its sha256 nothing runs."""

    name: Literal["python"]
    script: ScriptFields | None = None
    limits: LimitsFields | None = None

    @property
    def options(self) -> dict[str, Any]:
        """As a recipe has them."""
        return {"script": self.script.sha256} if self.script else {}

    @property
    def script_limits(self) -> ScriptLimits:
        """As a recipe has them."""
        said = self.limits or LimitsFields()
        return ScriptLimits(said.time, said.memory, said.processes, said.disk)


class WheelFields(Fields):
    """A need that is no repo: a wheel of plain Python."""

    wheel: Annotated[str, AfterValidator(_check_wheel)]
    sha256: Sha256
    url: Annotated[str, AfterValidator(_check_url)] | None = None
