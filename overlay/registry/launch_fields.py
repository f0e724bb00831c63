"""The section ``serve`` of an entry: what a server is started with beside the model itself.

It ends in a command line that people run as it is printed. So nothing in it may choose another model or another
program, enable a script, or be a secret.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from overlay.registry.entries import SERVERS
from overlay.registry.fields import Fields, Word, check_printable, wrong
from overlay.registry.launch_words import is_flag, why_not_flag, why_not_value, why_not_variable

__all__ = ["LaunchFields", "ServerName"]

_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_SECRET = re.compile(r"(^|_)(TOKEN|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|API_?KEYS?|ACCESS_?KEYS?|PRIVATE_?KEYS?)(_|$)")
_BY_HAND = "overlay env MODEL --for SERVER -- FLAGS"
_LEAST_POINTS, _MOST_POINTS = 2, 1000


def _check_server(name: str) -> str:
    if name not in SERVERS:
        raise wrong("unknown-server", f"there is no server {name!r}; expected one of {', '.join(SERVERS)}")
    return name


def _check_flags(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0].startswith("--"):
        raise wrong("bad-launch", f"flags begin with {words[0]!r}; expected a word that begins with --")
    for word in words:
        if not word:
            raise wrong("bad-launch", "a word of flags is empty")
        flag, _, value = word.partition("=") if is_flag(word) else ("", "", word)
        if flag and _SECRET.search(flag.upper().replace("-", "_")):
            raise wrong("secret-in-registry", f"{flag}: a registry holds no secrets; give it by hand")
        if why := (flag and why_not_flag(flag)) or why_not_value(value):
            raise wrong("reserved-launch", f"{word}: {why}", f"give it by hand: {_BY_HAND}")
    return words


def _check_variables(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise wrong("bad-launch", f"{name!r} is no name of a variable; expected A to Z, 0 to 9 and _")
        if _SECRET.search(name):
            raise wrong("secret-in-registry", f"{name}: a registry holds no secrets; set it where the server runs")
        if why := why_not_variable(name) or why_not_value(value):
            raise wrong("reserved-launch", f"{name}: {why}", "set it where the server runs")
    return variables


def _check_request(fields: dict[str, str]) -> dict[str, str]:
    for name in fields:
        if not _FIELD.fullmatch(name):
            raise wrong("bad-launch", f"{name!r} is no field of a request; expected a to z, 0 to 9 and _")
        if name == "num_inference_steps":
            raise wrong(
                "reserved-launch",
                "num_inference_steps: means grid points to some releases and evaluations to others",
                "grid_points: the number of points of the noise schedule, one more than the evaluations of the model",
            )
    return fields


def _grid_points(text: object) -> int:
    found = text if isinstance(text, str) else ""
    if not (found.isascii() and found.isdigit() and _LEAST_POINTS <= int(found[:9]) <= _MOST_POINTS):
        raise wrong("bad-launch", f"{str(text)[:40]!r}: expected a number from {_LEAST_POINTS} to {_MOST_POINTS}")
    return int(found)


ServerName = Annotated[str, AfterValidator(_check_server)]
_Key = Annotated[str, AfterValidator(check_printable)]


class LaunchFields(Fields):
    """How one server is started for a model, and what a request says by default."""

    flags: Annotated[tuple[Word, ...], AfterValidator(_check_flags)] = ()
    env: Annotated[dict[_Key, Word], AfterValidator(_check_variables)] = Field(default_factory=dict)
    request: Annotated[dict[_Key, Word], AfterValidator(_check_request)] = Field(default_factory=dict)
    grid_points: Annotated[int, BeforeValidator(_grid_points)] | None = None
