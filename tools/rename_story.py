"""The story of a rename upstream, from an empty folder on, run against a local Hub and printed as a page.

    python tools/rename_story.py --work /scratch > docs/tutorial/a-rename-upstream.md

An overlay is pinned that asks for ``adapter_config.json``. The source renames that file. What the program says before
anyone deploys, while no fixed overlay exists, of a bump that would break, and of the one that costs nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hub_server import HubServer

from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO, SPEC_NAME, write_hub
from overlay.demo.revisions import bump_rename

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MODEL = SOURCE_REPO
OLD, NEW = "adapter_config.json", SPEC_NAME


@dataclass(frozen=True, slots=True)
class Step:
    """One command as it was typed, and how it ended; the folder of the story is called ``/srv``.

    Attributes:
        title: Of the part of the story that begins with it; empty where it goes on.
        said: What happened before it; empty where it follows by itself.
    """

    title: str
    said: str
    command: str
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Story:
    """A folder with a Hub, a project and a cache, and the server that stands for the Hub.

    Attributes:
        steps: So far.
    """

    root: Path
    server: HubServer
    steps: list[Step] = field(default_factory=list)

    @property
    def project(self) -> Path:
        """The git repository that holds ``registry.yaml``."""
        return self.root / "project"

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment of every command: the local Hub, and caches below ``root``."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "HF_HOME": str(self.root / "huggingface"),
            "HF_ENDPOINT": self.server.url,
            "OVERLAY_CACHE_ROOT": str(self.root / "cache"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "GIT_AUTHOR_NAME": "dev",
            "GIT_AUTHOR_EMAIL": "dev@example.org",
            "GIT_COMMITTER_NAME": "dev",
            "GIT_COMMITTER_EMAIL": "dev@example.org",
        }

    def run(self, command: str, said: str = "", *, title: str = "") -> Step:
        """Type a command in the project."""
        done = subprocess.run(  # noqa: S603 - the commands of the story
            ["bash", "-c", command],  # noqa: S607 - as users have it
            cwd=self.project,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            check=False,
        )
        out, err = (text.replace(f"{self.root}/", "/srv/") for text in (done.stdout, done.stderr))
        step = Step(title, said, command, done.returncode, out, err)
        self.steps.append(step)
        return step

    def downloaded(self) -> int:
        """Payload of weight files that the server has sent."""
        return self.server.payload()


def tell(root: Path) -> Iterator[tuple[Story, str]]:
    """Run the story; yields it with the name of the chapter that has just ended.

    Chapters: ``pinned``, ``renamed``, ``naive``, ``fixed``, ``bumped``, ``warm``.
    """
    hub = write_hub(root / "hub", blocks=1, spec_name=OLD)
    bumped = bump_rename(hub)
    aside = root / "not yet"
    aside.mkdir()
    new_source, new_overlay = (
        shutil.move(path, aside / path.name) for path in (bumped.source_folder, bumped.overlay_folder)
    )
    for name in ("project", "home", "bin"):
        (root / name).mkdir()
    program = root / "bin" / "overlay"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m overlay "$@"\n')
    program.chmod(0o755)
    branches = {SOURCE_REPO: hub.source, OVERLAY_REPO: hub.overlay, NEEDS_REPO: NEEDS_REVISION}
    with HubServer(root / "hub", branches=branches) as server:
        story = Story(root, server)
        story.run("git init --quiet", "A project of its own, with the registry and its lock in git.", title="Pin it")
        story.run("overlay init")
        story.run(f"overlay add {MODEL} --overlay {OVERLAY_REPO}")
        story.run(f"overlay prewarm {MODEL}", "The first host builds the model. What came out is what others must get.")
        story.run(f'overlay lock {MODEL} --from-build "$(overlay path {MODEL})"')
        story.run("git add registry.yaml registry.lock && git commit --quiet --message 'Pin the overlay'")
        yield story, "pinned"

        shutil.move(new_source, bumped.source_folder)
        server.content.branches[SOURCE_REPO] = bumped.source
        said = f"Upstream renames `{OLD}` to `{NEW}`. The nightly job sees it before anyone deploys."
        story.run("overlay outdated", said, title="The rename")
        story.run(f"overlay bump {MODEL}", "Nobody has fixed the overlay yet, so there is nothing to go to.")
        yield story, "renamed"

        registry = story.project / "registry.yaml"
        registry.write_text(registry.read_text().replace(hub.source, bumped.source))
        said = "A bot bumps the source alone. The check of its pull request fails, and names the rename."
        story.run("git diff --unified=0 registry.yaml", said, title="A bump that would break")
        story.run("overlay check --base HEAD")
        story.run("git checkout --quiet registry.yaml", "It is closed.")
        yield story, "naive"

        shutil.move(new_overlay, bumped.overlay_folder)
        server.content.branches[OVERLAY_REPO] = bumped.overlay
        said = "Days later a new revision of the overlay asks for the new name."
        story.run("overlay outdated", said, title="The bump that holds")
        yield story, "fixed"

        story.run(f"overlay bump {MODEL}")
        story.run("overlay check --base HEAD")
        yield story, "bumped"

        server.forget()
        said = "A host that has the model links it at its new location. No weight byte is moved."
        story.run(f"overlay prewarm {MODEL}", said, title="What it costs")
        yield story, "warm"


HEAD = """\
# A rename upstream

What this program is for, told with its own output: an overlay asks for a file by name, and one day the source gives
that file another. The checkpoint is a tiny made-up one on a local Hub; commands and answers are real.
`tools/rename_story.py` runs them and writes this page, and tests hold what each command says. What `overlay demo
--keep` leaves is no such Hub: folders have no history, so [commits have to be
named](../how-to/keep-up.md#without-the-hub) there.
"""


def page(steps: Sequence[Step]) -> str:
    """The commands and what they printed, as Markdown."""
    parts = [HEAD]
    for step in steps:
        parts += [f"## {step.title}"] if step.title else []
        parts += [step.said] if step.said else []
        printed = [f"$ {step.command}", *(step.stdout + step.stderr).splitlines()]
        ended = [f"[status {step.status}]"] if step.status else []
        parts.append("\n".join(["```console", *(line.rstrip() for line in printed), *ended, "```"]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> None:
    """Parse the command line, run the story and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="folder to work in; a temporary one unless given")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().work) as folder:
        chapters = [story for story, _ in tell(Path(folder))]
        print(page(chapters[-1].steps), end="")


if __name__ == "__main__":
    main()
