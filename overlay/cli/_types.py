"""Option values that click does not know: sizes, ages, durations and servers."""

from __future__ import annotations

import re
from typing import Any

import click

from overlay.consumers.server import Server, parse_server
from overlay.formats.wording import format_bytes, parse_size

__all__ = ["AGE", "DURATION", "SERVER", "SIZE", "Size"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Size(click.ParamType[int]):
    """Bytes: ``1GiB``, ``500MB``, ``2000000``; at least ``minimum``."""

    name = "size"

    def __init__(self, minimum: int = 0) -> None:
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = parse_size(value)
        if size is None:
            self.fail(f"{value!r} is not a size; expected bytes or a unit, as in 1GiB, 500MB, 2TB", param, ctx)
        if size < self._minimum:
            self.fail(f"{value!r} is too little; expected at least {format_bytes(self._minimum)}", param, ctx)
        return size


class _Seconds(click.ParamType[int]):
    """Seconds: ``30d``, ``12h``."""

    def __init__(self, article: str, name: str) -> None:
        self._article = article
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+) ?([smhdw])", value.strip())
        if not match:
            expected = "expected a number and s, m, h, d or w, as in 30d or 12h"
            self.fail(f"{value!r} is not {self._article} {self.name}; {expected}", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


class _Server(click.ParamType[Server]):
    """A server that loads models: ``sglang``, ``sglang==0.5.22``, ``vllm-omni``."""

    name = "server"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> Server:
        return value if isinstance(value, Server) else parse_server(value)


SIZE = Size()
SERVER = _Server()
AGE = _Seconds("an", "age")
DURATION = _Seconds("a", "duration")
