"""``overlay outdated``: what moved upstream, and what to do about it."""

from __future__ import annotations

import click

from overlay.cli._options import Common, common_options

__all__ = ["outdated"]


@click.command(short_help="Say which pinned repos have moved, and whether to follow.")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--exit-code", is_flag=True, help="End with status 1 when a model needs attention.")
@common_options
def outdated(common: Common, models: tuple[str, ...], exit_code: bool) -> None:
    """Compare pins with the heads of their repos, and say whether it is safe to stay or right to bump.

    Without MODEL, all models of the registry file. Only listings, headers and small files are read. Those that come
    from the Hub stay in its cache; nothing else is written.

    \b
    advice         with --exit-code
    at the heads   0
    bump           1
    stay           1 where the heads are broken, else 0
    repair         1
    not told       5, 6 or 3, also without
    """  # noqa: D301  # the mark by which click keeps lines as they are
    from overlay.cli._outdated import run_outdated  # all that looking upstream takes

    run_outdated(common, models, exit_code=exit_code)
