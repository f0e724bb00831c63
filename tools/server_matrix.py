"""How each released sglang is served from a warmed cache: every way to name a model, with and without a connection.

    python tools/server_matrix.py --servers .servers --write docs/reference/sglang.md

A tiny VDN-H3 hub stands for the Hub. For each release, ``overlay`` warms an empty cache, then the release's own modules
look the model up (``server_child.py``): offline, and online after the source renamed its files on ``main``. What counts
is whether the warmed directory comes back untouched, and what the Hub was asked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fetch_servers import DEFAULT_FOLDER, WHEELS
from hub_server import HubServer
from server_child import ask

from overlay.consumers import sglang
from overlay.consumers.server import parse_server
from overlay.demo.checkpoint import OVERLAY_REPO, SOURCE_REPO, SPEC_NAME, HubFolder, write_hub
from overlay.demo.registry import write_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.consumers.server import Version

MODEL = SOURCE_REPO
PIPELINE = "VDNH3Pipeline"
RENAMED = "e" * 40
"""Commit of the source at which its adapters' specs have their former name again."""

RELEASES = tuple(wheel.version for wheel in WHEELS if wheel.name == "sglang")
NO_ROW = "not in its table"
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to serve a model.

    Attributes:
        title: As the table calls it.
        model: What is warmed, and what the server is given: a model, an overlay repo.
        folder_of: A repo that is copied to a folder of its name; the server is given that folder.
        by_path: The server is given the directory that ``overlay path`` prints, and the source is dropped.
        override: The server is told by an exported registry.
        needs_row: The release's own table must have the model.
    """

    title: str
    model: str = MODEL
    folder_of: str | None = None
    by_path: bool = False
    override: bool = False
    needs_row: bool = False


MODES = (
    Mode("by path", by_path=True),
    Mode("by name", needs_row=True),
    Mode("by name, `--with-override`", override=True),
    Mode("source folder", folder_of=SOURCE_REPO, needs_row=True),
    Mode("source folder, `--with-override`", folder_of=SOURCE_REPO, override=True),
    Mode("overlay repo", model=OVERLAY_REPO),
    Mode("overlay folder", folder_of=OVERLAY_REPO),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one start of a server.

    Attributes:
        is_hit: The warmed directory came back, nothing below the cache root was touched, and nothing was locked.
        requests: That the Hub got.
        payload: Bytes of files that it sent.
        text: What the server said or gave instead, where it is no hit.
    """

    is_hit: bool
    requests: int
    payload: int
    text: str = ""

    def __str__(self) -> str:
        """As the table has it."""
        if not self.is_hit:
            return "no"
        asked = f", {self.requests} request{'s' if self.requests > 1 else ''}" if self.requests else ""
        return f"yes{asked}{f', {self.payload} bytes' if self.payload else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """A mode of a release; both outcomes are None where the release has no row for the model."""

    version: str
    mode: Mode
    offline: Outcome | None
    online: Outcome | None


@dataclass(frozen=True, slots=True)
class World:
    """A Hub, and a user's folders below ``root``.

    Attributes:
        hub: What the server serves.
        server: The Hub.
    """

    root: Path
    hub: HubFolder
    server: HubServer

    @property
    def variables(self) -> dict[str, str]:
        """What a user exports who warms a cache."""
        return {
            "HF_ENDPOINT": self.server.url,
            "HF_HUB_CACHE": str(self.root / "hub"),
            "OVERLAY_REGISTRY": str(self.root / "registry.yaml"),
            "SGLANG_DIFFUSION_CACHE_ROOT": str(self.root / "cache"),
            "TMPDIR": str(self.root / "tmp"),
        }

    def overlay(self, *words: str) -> str:
        """Run ``overlay``; what it printed.

        Raises:
            RuntimeError: It failed.
        """
        command = [sys.executable, "-m", "overlay", *words]
        environ = {**os.environ, **self.variables}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)  # noqa: S603 - ourselves
        if done.returncode != 0:
            raise RuntimeError(f"overlay {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()


def write_source_hub(folder: Path) -> HubFolder:
    """The demo's hub with one block, and a second revision of the source in which the specs are renamed."""
    hub = write_hub(folder, blocks=1)
    renamed = hub.source_folder.with_name(RENAMED)
    shutil.copytree(hub.source_folder, renamed)
    for path in list(renamed.rglob(SPEC_NAME)):
        path.rename(path.with_name("adapter_config.json"))
    return hub


def copied_hub(hub: HubFolder, folder: Path) -> HubFolder:
    """The same hub in a folder of its own, to be changed."""
    return replace(hub, root=shutil.copytree(hub.root, folder))


@contextmanager
def world(root: Path, hub: HubFolder) -> Iterator[World]:
    """Empty caches, and a Hub whose ``main`` of the source is at the pinned commit."""
    (root / "tmp").mkdir(parents=True)
    write_registry(root / "registry.yaml", hub)
    with HubServer(hub.root, branches={SOURCE_REPO: hub.source}) as server:
        yield World(root, hub, server)


def try_mode(here: World, mode: Mode, version: str, release: Path) -> Row:
    """Warm the world's cache for a mode and start the release's server as ``overlay env`` says, offline and online."""
    if mode.needs_row and MODEL not in sglang.built_in(number_of(version)):
        return Row(version, mode, None, None)
    folder = _copied(here, mode.folder_of) if mode.folder_of else None
    # An overlay folder is what the model is; a source folder only stands for it.
    warmed = folder if folder and mode.folder_of == OVERLAY_REPO else mode.model
    flags = ["--for", f"sglang=={version}", *(["--with-override"] if mode.override else [])]
    here.overlay("prewarm", warmed, *flags, "--drop-source" if mode.by_path else "--stage-source", "-q")
    path = here.overlay("path", warmed, *flags)
    said = json.loads(here.overlay("env", warmed, *flags, "--by", "path" if mode.by_path else "name", "--json"))
    model = folder or said["command"][said["command"].index("--model-path") + 1]
    offline = start(here, release, model, path, said["env"])
    here.server.content.branches[SOURCE_REPO] = RENAMED
    online = start(here, release, model, path, {**said["env"], "HF_HUB_OFFLINE": "0"})
    return Row(version, mode, offline, online)


def number_of(version: str) -> Version:
    """The three numbers of a release."""
    return sglang.release_of(parse_server(f"sglang=={version}").version).version


def _copied(here: World, repo: str) -> str:
    revision = here.hub.source_folder if repo == SOURCE_REPO else here.hub.overlay_folder
    return str(shutil.copytree(revision, here.root / "models" / repo.rpartition("/")[2]))


def start(here: World, release: Path, model: str, path: str, variables: dict[str, str]) -> Outcome:
    """Let a release look a model up.

    Args:
        model: What the server is given.
        path: The warmed directory.
        variables: Of the server, besides those that turn it to this world.
    """
    before, asked = _traces(here, path), len(here.server.requests)
    index, served = ask(
        release,
        [["read_index", model], ["serve", model]],
        **{**variables, "HF_ENDPOINT": here.server.url, "TMPDIR": str(here.root / "tmp")},
    )
    requests = here.server.requests[asked:]
    untouched = _traces(here, path) == before
    is_hit = untouched and index.get("is") == PIPELINE and os.path.realpath(served.get("is", "")) == path
    failed = next((answer for answer in (index, served) if "is" not in answer), served)
    text = "" if is_hit else str(failed.get("text", failed.get("is")))
    # What an answer to a question about a repo takes is no part of a file.
    payload = sum(request.sent for request in requests if "/resolve/" in request.path and request.method == "GET")
    return Outcome(is_hit, len(requests), payload, text)


def _traces(here: World, path: str) -> dict[str, tuple[int, int, int]]:
    """Everything that a server changes that builds: what lies where it looks, the tree itself, locks."""
    locks = (here.root / "tmp").glob("*.lock")
    found = [*(here.root / "cache/materialized_models").rglob("*"), *Path(path).rglob("*"), *locks]
    return {str(item): ((stat := item.lstat()).st_ino, stat.st_size, stat.st_mtime_ns) for item in found}


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: a line a mode, a column a release."""
    versions = list(dict.fromkeys(row.version for row in rows))
    lines = ["| | " + " | ".join(versions) + " |", "|---" * (len(versions) + 1) + "|"]
    for mode in dict.fromkeys(row.mode for row in rows):
        for connection in ("offline", "online"):
            cells = (getattr(row, connection) for row in rows if row.mode == mode)
            lines.append(f"| {mode.title}, {connection} | {' | '.join(str(cell or NO_ROW) for cell in cells)} |")
    return "\n".join(lines)


def write_table(page: Path, rows: Sequence[Row]) -> None:
    """Put the table between the markers of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}")


def main() -> None:
    """Run the whole matrix."""
    parser = argparse.ArgumentParser(description="Serve a warmed cache with every released sglang.")
    parser.add_argument("--servers", type=Path, default=DEFAULT_FOLDER, help="where fetch_servers.py put them")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the table into this page")
    parser.add_argument("--only", metavar="MODE", action="append", help="only this mode, as the table calls it")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="server-matrix-") as work:
        hub = write_source_hub(Path(work, "hub"))
        for version in RELEASES:
            for number, mode in enumerate(mode for mode in MODES if mode.title in (options.only or [mode.title])):
                with world(Path(work, f"{version}-{number}"), hub) as here:
                    row = try_mode(here, mode, version, options.servers / f"sglang-{version}")
                rows.append(row)
                for outcome in (row.offline, row.online):
                    print(version, mode.title, outcome, outcome.text if outcome else "", sep=" | ", file=sys.stderr)
    print(table(rows))
    if options.write:
        write_table(options.write, rows)


if __name__ == "__main__":
    main()
