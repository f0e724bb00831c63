"""The options that every command has, and what they are handed on as."""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import overlay
from overlay.cli._output import Output
from overlay.cli._types import DURATION, SERVER, Size
from overlay.errors import InvalidUsage, OverlayError
from overlay.planning.rules import DEFAULT_RULE, RULES
from overlay.registry.variables import SGLANG_CACHE_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.consumers.server import Server

__all__ = [
    "DIRECTORY",
    "FILE",
    "Common",
    "build_options",
    "common_options",
    "link_option",
    "lock_option",
    "rule_flags",
    "rule_option",
    "server_flags",
    "server_options",
    "server_options_as",
    "store_option",
]

# At the start or after a colon, and nothing behind it.
_COMMAND = re.compile(r"(^|: )overlay [a-z][^;:,]*$")
LEAST_MEMORY = 64 * 10**6
FILE = click.Path(path_type=Path, dir_okay=False)
DIRECTORY = click.Path(path_type=Path, file_okay=False)

# OVERLAY_REGISTRY and OVERLAY_CACHE_ROOT are read where the registry and the root are chosen, because the answer
# names which of flag, variable and file decided; click must not turn them into flags. --json has no variable, so that
# an error met while parsing is printed in the form that was asked for.
_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, allow_from_autoenv=False, help="Print one JSON document."),
    click.option("--registry", type=FILE, allow_from_autoenv=False, help="Registry file.  [env: OVERLAY_REGISTRY]"),
    click.option(
        "--cache-root",
        type=DIRECTORY,
        allow_from_autoenv=False,
        help=f"Root of the cache.  [env: OVERLAY_CACHE_ROOT, {SGLANG_CACHE_ROOT}]",
    ),
    click.option(
        "--hub",
        type=DIRECTORY,
        envvar="OVERLAY_HUB",
        help="Folder DIR/<org>/<name>/<revision> to read from.  [env: OVERLAY_HUB]",
    ),
    click.option("--offline", is_flag=True, envvar="OVERLAY_OFFLINE", help="Make no request.  [env: OVERLAY_OFFLINE]"),
    click.option("-q", "--quiet", is_flag=True, envvar="OVERLAY_QUIET", help="No progress, no remarks."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        envvar="OVERLAY_VERBOSE",
        help="Show retries of the Hub client, and tracebacks of bugs.",
    ),
)


rule_option = click.option(
    "--rule", type=click.Choice(RULES), default=DEFAULT_RULE, show_default=True, help="Numeric rule."
)

_BUILD_OPTIONS = (
    rule_option,
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--jobs", type=click.IntRange(min=1), help="Worker threads.  [default: what pays on this machine]"),
    click.option(
        "--memory",
        type=Size(minimum=LEAST_MEMORY),
        default=2**30,
        help="Memory to take beside what the device needs, at least 64MB.  [default: 1GiB]",
    ),
)


@dataclass(frozen=True, slots=True)
class Common:
    """Values of the common options.

    Attributes:
        registry: Registry file given by flag.
        cache_root: Cache root given by flag.
        hub: Folder that stands for the Hub.
        offline: Make no request.
        output: Where results and remarks go.
    """

    registry: Path | None
    cache_root: Path | None
    hub: Path | None
    offline: bool
    output: Output

    def options(self, **choices: Any) -> overlay.Options:
        """Everything chosen, as the stages take it."""
        return overlay.Options(
            registry=self.registry, cache_root=self.cache_root, hub=self.hub, offline=self.offline, **choices
        )

    def command(self, *words: str) -> str:
        """A command line to suggest, with the places that were given by flag; variables stay in force by themselves."""
        return self.completed(shlex.join(["overlay", *words]))

    def advice(self, text: str, *, offline: bool = True) -> str:
        """What to do next, whose author knew of no flags: where it is a command, or ends in one, that is completed."""
        return self.completed(text, offline=offline) if _COMMAND.search(text) else text

    def completed(self, command: str, *, offline: bool = True) -> str:
        """A command line that lacks these places, with them.

        Args:
            offline: Whether it is to make no request either, where this one does not.
        """
        source = click.get_current_context().get_parameter_source
        given = {"registry": self.registry, "cache_root": self.cache_root, "hub": self.hub}
        flags: list[str] = []
        for name, value in given.items():
            if source(name) is ParameterSource.COMMANDLINE:
                flags += [f"--{name.replace('_', '-')}", str(value)]
        flags += ["--offline"] if offline and source("offline") is ParameterSource.COMMANDLINE else []
        return command if not flags or command.endswith(shlex.join(flags)) else f"{command} {shlex.join(flags)}"


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options; it receives them as its first argument, a :class:`Common`."""

    @functools.wraps(function)
    def command(
        *,
        as_json: bool,
        registry: Path | None,
        cache_root: Path | None,
        hub: Path | None,
        offline: bool,
        quiet: bool,
        verbose: bool,
        **options: Any,
    ) -> None:
        output = Output(json=as_json, quiet=quiet, verbose=verbose)
        common = Common(registry, cache_root, hub, offline, output)
        _hush_hub_client(verbose=verbose)
        try:
            function(common, **options)
        except OverlayError as error:
            if error.hint:
                error.hint = common.advice(error.hint)
            raise

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _hush_hub_client(*, verbose: bool) -> None:
    """The client logs every request that it makes again; what becomes of it is said here."""
    if os.environ.get("HF_HUB_VERBOSITY"):
        return
    for module in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        logging.getLogger(module).setLevel(logging.NOTSET if verbose else logging.ERROR)


link_option = click.option(
    "--link",
    type=click.Choice(["auto", "reflink", "hardlink", "copy"]),
    default="auto",
    show_default=True,
    help="How unchanged files come over.",
)

lock_option = click.option(
    "--lock-timeout",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Wait so long while another process builds the same model; 0s: not at all.",
)


def store_option(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command ``--store``; it receives ``store``, a URL, or None where it is not required."""
    return click.option(
        "--store",
        metavar="URL",
        envvar="OVERLAY_STORE",
        required=required,
        help="A folder that hosts share, or s3://bucket/prefix, gs://…: what fsspec knows.  [env: OVERLAY_STORE]",
    )


def server_options_as(flag: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As :func:`server_options`, for a command whose ``--for`` means something else."""
    options = (
        click.option(
            flag,
            "server",
            type=SERVER,
            metavar="SERVER",
            help="Whom the model is for: sglang, sglang==VERSION or vllm-omni. Decides the location.",
        ),
        click.option(
            "--with-override", is_flag=True, help="The server is started with the registry that `overlay env` exports."
        ),
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(*args: Any, server: Server | None, with_override: bool, **choices: Any) -> None:
            if with_override and (server is None or server.name != "sglang"):
                raise InvalidUsage(
                    f"--with-override says how sglang is started, and {flag} does not name it",
                    code="option-conflict",
                    hint=f"add {flag} sglang",
                )
            function(*args, server=replace(server, with_override=with_override) if server else None, **choices)

        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--for`` and ``--with-override``; it receives ``server``, a Server or None."""
    return server_options_as("--for")(function)


def server_flags(server: Server | None) -> tuple[str, ...]:
    """Flags of a command to suggest for the same server."""
    return server.flags if server else ()


def rule_flags(rule: str) -> tuple[str, ...]:
    """Flags of a command to suggest for a model of this rule."""
    return () if rule == DEFAULT_RULE else ("--rule", rule)


def build_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a build: they go into ``Common.options`` as they are."""
    for option in reversed(_BUILD_OPTIONS):
        function = option(function)
    return function
