"""The frozen command line: a change here is a change for users, and belongs into the changelog."""

from __future__ import annotations

import click
import pytest

from overlay.cli._main import cli

pytestmark = pytest.mark.no_torch

COMMON = "--json --registry --cache-root --hub --offline -q --quiet -v --verbose"
BUILD = "--rule --device --jobs --memory"
SERVER = "--for --with-override"
SURFACE = {
    "overlay": "--version",
    "overlay resolve": f"MODEL --path --rule {SERVER} {COMMON}",
    "overlay path": f"MODEL --rule {SERVER} {COMMON}",
    "overlay env": f"MODEL [FLAGS]... --by --format --rule {SERVER} {COMMON}",
    "overlay check": f"[MODEL]... --base --against --same --revision --fail-on --output {SERVER} {COMMON}",
    "overlay lock": f"[MODEL]... --from-build --dry-run {COMMON}",
    "overlay prewarm": "MODEL... --dry-run --only --allow-floating --allow-script --stage-source --drop-source "
    f"--store --link --lock-timeout {SERVER} {BUILD} {COMMON}",
    "overlay adopt": f"MODEL_OR_DIR --dry-run --allow-floating --link --lock-timeout {SERVER} {BUILD} {COMMON}",
    "overlay push": f"MODEL... --store --anew --rule {SERVER} {COMMON}",
    "overlay pull": f"MODEL... --store --dry-run --rule {SERVER} --lock-timeout {COMMON}",
    "overlay lease": f"MODEL [COMMAND]... --for --server --with-override --rule {COMMON}",
    "overlay rollback": f"MODEL --to --undo --dry-run --rule {SERVER} --lock-timeout {COMMON}",
    "overlay fuse": f"BASE --adapter --out --dry-run --link {BUILD} {COMMON}",
    "overlay verify": f"MODEL_OR_DIR --level --rule {SERVER} {COMMON}",
    "overlay compare": f"A B {COMMON}",
    "overlay init": f"--dry-run {COMMON}",
    "overlay add": f"MODEL --overlay --source-rev --recipe --stage --base --adapter --need --dry-run {COMMON}",
    "overlay bump": f"[MODEL]... --all --overlay-to --source-to --dry-run {COMMON}",
    "overlay outdated": f"[MODEL]... --exit-code {COMMON}",
    "overlay cache": "",
    "overlay cache ls": COMMON,
    "overlay cache info": f"TARGET {COMMON}",
    "overlay cache repair": f"[TARGET]... --dry-run --lock-timeout {SERVER} {COMMON}",
    "overlay cache rm": f"TARGET... --leased --dry-run {COMMON}",
    "overlay cache gc": f"--max-size --max-age --also --dry-run {COMMON}",
    "overlay cache pin": f"TARGET --reason {COMMON}",
    "overlay cache unpin": f"TARGET {COMMON}",
    "overlay doctor": COMMON,
    "overlay demo": f"--keep {COMMON}",
}


def found(command: click.Command, name: str, parent: click.Context | None = None) -> dict[str, set[str]]:
    """Every command below ``command``, and what can be said to it."""
    context = click.Context(command, info_name=name, parent=parent)
    words = set()
    for parameter in command.params:
        words |= set(parameter.opts) if isinstance(parameter, click.Option) else {parameter.make_metavar(context)}
    surface = {context.command_path: words}
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            surface |= found(command.get_command(context, child), child, context)
    return surface


def test_surface() -> None:
    """Commands, arguments and options are exactly these."""
    assert {command: set(words.split()) for command, words in SURFACE.items()} == found(cli, "overlay")


def test_materialize_is_prewarm() -> None:
    """`overlay materialize` is the same command under a second name."""
    context = click.Context(cli, info_name="overlay")

    assert cli.get_command(context, "materialize") is cli.get_command(context, "prewarm")


@pytest.mark.parametrize("command", [name.split()[1:] for name in SURFACE])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(command: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command answers -h and --help with its description on stdout."""
    from overlay.cli._main import run

    assert run([*command, flag]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: {' '.join(['overlay', *command])} ")
    assert err == ""
