"""The section ``serve`` of an entry: what a server is started with beside the model itself.

It ends in a command line that people run as it is printed. So it says only what is on the list of what a model can
need, by full name and with a value of the right kind.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from overlay.registry.entries import SERVERS
from overlay.registry.fields import Fields, Word, check_printable, wrong
from overlay.registry.launch_allowed import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.registry.launch_allowed import Value

__all__ = ["LaunchFields", "LaunchProblem", "ServerName", "launch_problems"]

_LEAST_POINTS, _MOST_POINTS = 2, 1000

LaunchProblem = tuple[tuple[str | int, ...], str, str, str]
"""Where below the server, the code, what is wrong, and what to do."""


def _check_server(name: str) -> str:
    if name not in SERVERS:
        raise wrong("unknown-server", f"there is no server {name!r}; expected one of {', '.join(SERVERS)}")
    return name


def _grid_points(text: object) -> int:
    found = text if isinstance(text, str) else ""
    if not (found.isascii() and found.isdigit() and _LEAST_POINTS <= int(found[:9]) <= _MOST_POINTS):
        raise wrong("bad-launch", f"{str(text)[:40]!r}: expected a number from {_LEAST_POINTS} to {_MOST_POINTS}")
    return int(found)


ServerName = Annotated[str, AfterValidator(_check_server)]
_Key = Annotated[str, AfterValidator(check_printable)]


class LaunchFields(Fields):
    """How one server is started for a model, and what a request says by default."""

    flags: tuple[Word, ...] = ()
    env: dict[_Key, Word] = Field(default_factory=dict)
    request: dict[_Key, Word] = Field(default_factory=dict)
    grid_points: Annotated[int, BeforeValidator(_grid_points)] | None = None


def launch_problems(server: str, launch: LaunchFields) -> Iterator[LaunchProblem]:
    """Whatever a registry may not say to a server."""
    allowed = ALLOWED[server]
    yield from _flag_problems(server, launch.flags)
    for name, value in launch.env.items():
        if found := _problem(name, [value], allowed.env.get(name), f"variables of {server}"):
            yield ("env", name), *found, "set it in your own deployment, where the server runs"
    for name, value in launch.request.items():
        if name == "num_inference_steps":
            code, message = "reserved-launch", f"{name}: means grid points to some releases and evaluations to others"
            hint = "grid_points: the number of points of the noise schedule, one more than the evaluations of the model"
            yield ("request", name), code, message, hint
        elif found := _problem(name, [value], allowed.request.get(name), "fields of requests"):
            yield ("request", name), *found, "say it in your own requests"


def _flag_problems(server: str, words: tuple[str, ...]) -> Iterator[LaunchProblem]:
    hint = f"pass it on the command line of your own deployment: overlay env MODEL --for {server} -- FLAGS"
    starts = [at for at, word in enumerate(words) if word.startswith("--")]
    if words and 0 not in starts:
        code, message = "bad-launch", f"flags begin with {words[0]!r}; expected a word that begins with --"
        yield ("flags", 0), code, message, hint
    for start, end in pairwise([*starts, len(words)]):
        flag, joined, value = words[start].partition("=")
        known, behind = ALLOWED[server].flags.get(flag), list(words[start + 1 : end])
        if known and joined and behind:
            code, message = "bad-launch", f"{behind[0]!r} stands behind {words[start]}, which has its value"
            yield ("flags", start + 1), code, message, hint
        elif found := _problem(flag, [value] if joined else behind, known, f"flags of {server}"):
            yield ("flags", start), *found, hint


def _problem(name: str, values: list[str], known: Value | None, among: str) -> tuple[str, str] | None:
    """The code and what is wrong, if something is."""
    if known is None:
        # Without its value, which may be a secret.
        code, message = "reserved-launch", f"{name} is not among the {among} that a registry may give"
        return code, message
    if not known.fits(values):
        code, message = "bad-launch", f"{name}: found {' '.join(values) or 'nothing'}; expected {known.said}"
        return code, message
    return None
