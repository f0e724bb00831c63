"""``overlay add``: a model comes into the registry, everything pinned at today's commits."""

from __future__ import annotations

from typing import Any

import click

from overlay.cli._options import Common, common_options

__all__ = ["add"]


@click.command(short_help="Add a model to the registry, pinned at today's commits.")
@click.argument("model")
@click.option("--overlay", "overlay_at", metavar="REPO[@REV]", help="The overlay; a lora recipe needs none.")
@click.option("--source-rev", default="main", show_default=True, metavar="REV", help="Commit of the source.")
@click.option("--recipe", type=click.Choice(["vdn-h3", "lora", "mappings", "python"]), help="[default: found out]")
@click.option("--stage", help="Stage of a vdn-h3 recipe.")
@click.option("--base", metavar="[REPO:]PATH", help="Base of a lora recipe.")
@click.option("--adapter", "adapters", multiple=True, metavar="[REPO:]PATH", help="Adapter of a lora recipe; in order.")
@click.option(
    "--need",
    "needs",
    multiple=True,
    metavar="REPO[@REV][:COMPONENT,...]",
    help="Secondary repo, and the folders that are taken from it.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@common_options
def add(common: Common, model: str, dry_run: bool, **said: Any) -> None:
    """Add MODEL (the repo of its source) to registry.yaml, every repo pinned, and lock it.

    What is not named is found out: commits are today's heads, the recipe is the one that is known for the model or for
    the overlay's script. Nothing is written where the pins do not fit together; then the status is 1.
    """
    from overlay.cli._add import Wanted, run_add  # all that looking upstream takes

    run_add(common, model, Wanted(**said), dry_run=dry_run)
