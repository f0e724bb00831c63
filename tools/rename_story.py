"""The story of a rename upstream, from an empty folder on, run against a local Hub and printed as a transcript.

    python tools/rename_story.py --work /scratch > story.txt

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

from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO, write_hub
from overlay.demo.revisions import bump_rename

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODEL = SOURCE_REPO


@dataclass(frozen=True, slots=True)
class Step:
    """One command as it was typed, and how it ended.

    Attributes:
        said: What happened before it, in the words of a story; empty where it follows by itself.
    """

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
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}
        return {
            **kept,
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

    def run(self, command: str, said: str = "") -> Step:
        """Type a command in the project; ``overlay`` is this checkout's."""
        words = shlex.split(command)
        program = [sys.executable, "-m", "overlay", *words[1:]] if words[0] == "overlay" else words
        done = subprocess.run(  # noqa: S603 - the commands of the story
            program, cwd=self.project, env=dict(self.variables), capture_output=True, text=True, check=False
        )
        step = Step(said, command, done.returncode, done.stdout, done.stderr)
        self.steps.append(step)
        return step

    def downloaded(self) -> int:
        """Payload of weight files that the server has sent."""
        return self.server.payload()


def tell(root: Path) -> Iterator[tuple[Story, str]]:
    """Run the story; yields it with the name of the chapter that has just ended.

    Chapters: ``pinned``, ``renamed``, ``naive``, ``fixed``, ``bumped``, ``warm``.
    """
    hub = write_hub(root / "hub", blocks=1, spec_name="adapter_config.json")
    bumped = bump_rename(hub)
    aside = root / "not yet"
    aside.mkdir()
    new_source, new_overlay = (
        shutil.move(path, aside / path.name) for path in (bumped.source_folder, bumped.overlay_folder)
    )
    (root / "project").mkdir()
    (root / "home").mkdir()
    branches = {SOURCE_REPO: hub.source, OVERLAY_REPO: hub.overlay, NEEDS_REPO: NEEDS_REVISION}
    with HubServer(root / "hub", branches=branches) as server:
        story = Story(root, server)
        story.run("git init --quiet")
        story.run("overlay init", "A project of its own, with a registry in git.")
        story.run(f"overlay add {MODEL} --overlay {OVERLAY_REPO}")
        story.run("git add registry.yaml registry.lock")
        story.run("git commit --quiet --message 'Pin the overlay'")
        story.run(f"overlay prewarm {MODEL}", "The first host builds it.")
        yield story, "pinned"

        shutil.move(new_source, bumped.source_folder)
        server.content.branches[SOURCE_REPO] = bumped.source
        story.run(
            "overlay outdated", "Upstream renames adapter_config.json to adapter_spec.json. The nightly job sees it."
        )
        story.run(f"overlay bump {MODEL}", "No fixed overlay exists yet.")
        yield story, "renamed"

        registry = story.project / "registry.yaml"
        pinned = registry.read_text()
        registry.write_text(pinned.replace(hub.source, bumped.source))
        story.run("git diff --unified=0 registry.yaml", "A bot bumps the source alone.")
        story.run("overlay check --base HEAD")
        story.run("git checkout --quiet registry.yaml", "The pull request is closed.")
        yield story, "naive"

        shutil.move(new_overlay, bumped.overlay_folder)
        server.content.branches[OVERLAY_REPO] = bumped.overlay
        story.run("overlay outdated", "Days later the overlay asks for the new name.")
        yield story, "fixed"

        story.run(f"overlay bump {MODEL}")
        story.run("overlay check --base HEAD")
        yield story, "bumped"

        server.forget()
        story.run(f"overlay prewarm {MODEL}", "Hosts that have the model link it anew.")
        yield story, "warm"


def transcript(story: Story) -> Iterator[str]:
    """The commands and what they printed, with the folders of this run left out."""
    for step in story.steps:
        if step.said:
            yield f"# {step.said}"
        yield f"$ {step.command}"
        for line in (step.stdout + step.stderr).splitlines():
            yield line.replace(str(story.root), "").replace(story.server.url, "https://huggingface.co").rstrip()
        if step.status:
            yield f"[status {step.status}]"
        yield ""


def main() -> None:
    """Parse the command line, run the story and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="folder to work in; a temporary one unless given")
    work = parser.parse_args().work
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for story, chapter in tell(Path(folder)):
            last = story if chapter == "warm" else None
        if last is not None:
            print("\n".join(transcript(last)))


if __name__ == "__main__":
    main()
