"""A group of commands that are imported when they are asked for, so that one command never pays for another."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group whose commands lie in modules of their own.

    Args:
        places: By command, in the order of the help, the module below ``overlay.cli``, and after a colon the command's
            name there where that is not its own.
        aliases: Other names of commands, which the help does not list.
    """

    def __init__(
        self, *args: Any, places: Mapping[str, str], aliases: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._places = places
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click passes it
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        name = self._aliases.get(cmd_name, cmd_name)
        if name not in self._places:
            return None
        module, _, attribute = self._places[name].partition(":")
        command: click.Command = getattr(import_module(f"overlay.cli.{module}"), attribute or name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click suggests from commands that are loaded already
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=self._places, ctx=ctx) from None
