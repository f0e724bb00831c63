"""``overlay bump``: pins move to newer commits that belong together."""

from __future__ import annotations

import click

from overlay.cli._options import Common, common_options

__all__ = ["bump"]


@click.command(short_help="Move pins to newer commits that fit together.")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All models of the registry file.")
@click.option("--overlay-to", metavar="REV", help="Commit for the overlay: at least 4 digits, or main.")
@click.option("--source-to", metavar="REV", help="Commit for the source: at least 4 digits, or main.")
@click.option("--dry-run", is_flag=True, help="Say what would change; write nothing.")
@common_options
def bump(
    common: Common,
    models: tuple[str, ...],
    every: bool,
    overlay_to: str | None,
    source_to: str | None,
    dry_run: bool,
) -> None:
    """Move the pins of models in registry.yaml, and write its lock anew; comments and order stay.

    Without a target, the newest pair of source and overlay is looked for whose contract holds; where there is none, the
    pins stay. Pins that do not hold are moved to the newest pair that does, an older one too; where there is none, the
    status is 1. With a target, what is not named stays; pins whose contract is broken are not written, and the status
    is 1. A fingerprint in the entry is kept right. Nothing but listings, headers and small files is downloaded.
    """
    from overlay.cli._bump import run_bump  # all that looking upstream takes

    run_bump(common, models, every=every, overlay_to=overlay_to, source_to=source_to, dry_run=dry_run)
