"""A server as a user names it: ``sglang``, ``sglang==0.5.22``, ``vllm-omni``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from overlay.errors import InvalidUsage
from overlay.registry.entries import SERVERS

__all__ = ["SERVERS", "Server", "Version", "parse_server", "version_text"]

Version = tuple[int, int, int]
"""Major, minor, patch; post releases of a version behave as it does."""

_VERSION = re.compile(r"(?P<major>[0-9]{1,9})\.(?P<minor>[0-9]{1,9})(?:\.(?P<patch>[0-9]{1,9}))?(?:\.post[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Server:
    """What a model is meant for.

    Attributes:
        name: Of ``SERVERS``.
        version: None where the user gave none: the newest that is known here.
        with_override: Whether the server is started with the registry that ``overlay env`` exports, and so takes the
            pins in force, the source's among them, instead of those that it was built with.
    """

    name: str
    version: Version | None = None
    with_override: bool = False

    def __str__(self) -> str:
        """As a user names it."""
        return f"{self.name}=={version_text(self.version)}" if self.version else self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """The options of a command that is run for it."""
        return ("--for", str(self), *(["--with-override"] if self.with_override else []))


def version_text(version: Version) -> str:
    """``0.5.22``."""
    return ".".join(map(str, version))


def parse_server(text: str, *, with_override: bool = False) -> Server:
    """Read what ``--for`` was given. ``0.30`` is ``0.30.0``, as it is to package installers.

    Raises:
        InvalidUsage: It is no server that is known here, or no version of one.
    """
    name, named, said = text.strip().partition("==")
    if name not in SERVERS:
        raise InvalidUsage(
            f"no server {text!r}; expected one of {', '.join(SERVERS)}, with ==VERSION or without",
            code="unknown-server",
            hint="for instance --for sglang==0.5.23",
            server=text,
        )
    if not named:
        return Server(name, None, with_override)
    found = _VERSION.fullmatch(said)
    if found is None:
        raise InvalidUsage(
            f"{text!r}: no release of {name}; expected {name}==X.Y.Z, three numbers (a .postN behind them is taken)",
            code="unknown-server",
            hint=f"name a release, or leave the version out: --for {name}",
            server=text,
        )
    return Server(name, (int(found["major"]), int(found["minor"]), int(found["patch"] or 0)), with_override)
