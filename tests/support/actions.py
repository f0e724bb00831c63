"""Running the composite action as GitHub's runner does: its steps, environment files and a real git repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = [
    "BOT_EMAIL",
    "OVERLAY_BIN",
    "PROJECT",
    "REPOSITORY",
    "Checkout",
    "Ran",
    "evaluate",
    "make_checkout",
    "read_yaml",
    "run_step",
]

PROJECT = Path(__file__).parents[2]
OVERLAY_BIN = Path(sys.executable).parent
BOT_EMAIL = "overlay-relock[bot]@users.noreply.github.com"
REPOSITORY = "acme/models"


def read_yaml(path: Path) -> Any:
    """A YAML file; duplicate keys are an error, ``on`` is a word."""
    return YAML(typ="safe").load(path.read_text())


def evaluate(text: str, context: dict[str, Any]) -> str:
    """A value of a workflow with its ``${{ a.b || c.d }}`` replaced: the first of them that is not empty."""

    def value(match: re.Match[str]) -> str:
        for path in match[1].split("||"):
            found: Any = context
            for name in path.strip().split("."):
                found = found.get(name) if isinstance(found, dict) else None
            if found:
                return str(found)
        return ""

    return re.sub(r"\$\{\{(.*?)\}\}", value, text)


@dataclass(frozen=True)
class Ran:
    """What a step came to."""

    status: int
    log: str
    calls: list[str]
    files: dict[str, str]


@dataclass(frozen=True)
class Checkout:
    """A clone with a bare remote, as actions/checkout leaves it."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    def git(self, *args: str) -> str:
        """Output of a git command in the clone."""
        return _git(self.work, *args)

    def remote(self, *args: str) -> str:
        """Output of a git command in the remote."""
        return _git(self.root / "remote.git", *args)

    def commit(self, files: dict[str, str], message: str = "Change") -> str:
        """Write and commit files; returns the commit."""
        for name, content in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def stand_in(self, body: str = "") -> None:
        """Put a program named ``overlay`` in front: it notes its arguments and the registry, then runs ``body``."""
        program = self.root / "bin" / "overlay"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/bash\necho "$* [$OVERLAY_REGISTRY]" >>"{self.root}/calls"\n{body}\n')
        program.chmod(0o755)


def make_checkout(root: Path) -> Checkout:
    """A remote with one commit on main, and its clone."""
    checkout = Checkout(root)
    root.mkdir(exist_ok=True)
    _git(root, "init", "--quiet", "--bare", "--initial-branch=main", "remote.git")
    _git(root, "init", "--quiet", "--initial-branch=main", "work")
    checkout.git("remote", "add", "origin", f"file://{root}/remote.git")
    checkout.commit({"registry.yaml": "schema_version: 1\nmodels: {}\n"}, "Start")
    checkout.git("push", "--quiet", "origin", "main")
    return checkout


def run_step(
    checkout: Checkout,
    script: str = "run.sh",
    *,
    inputs: dict[str, str] | None = None,
    github: dict[str, Any] | None = None,
    **environ: str,
) -> Ran:
    """Run the step of action.yml that starts ``script``, for these inputs and this ``github`` context."""
    action = read_yaml(PROJECT / "action.yml")
    (step,) = [step for step in action["runs"]["steps"] if f"/{script}" in step.get("run", "")]
    context = {
        "inputs": {name: given["default"] for name, given in action["inputs"].items()} | (inputs or {}),
        "github": github or {},
        "steps": {"python": {"outputs": {"python-path": sys.executable}}},
    }
    temp = checkout.root / "runner-temp"
    temp.mkdir(exist_ok=True)
    files = {name: temp / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("")
    variables = {
        **_variables(),
        **{name: str(path) for name, path in files.items()},
        "PATH": f"{checkout.root}/bin:{OVERLAY_BIN}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(temp),
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(PROJECT),
        "GITHUB_REPOSITORY": REPOSITORY,
        **{name: evaluate(value, context) for name, value in step["env"].items()},
        **environ,
    }
    (checkout.root / "calls").write_text("")
    ran = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],  # noqa: S607 - the runner's
        cwd=checkout.work,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=90,
    )
    return Ran(
        ran.returncode,
        ran.stdout,
        (checkout.root / "calls").read_text().splitlines(),
        {name: path.read_text() for name, path in files.items()},
    )


def _variables() -> dict[str, str]:
    """The test's environment; git knows of no user and reads no configuration of this machine."""
    who = {f"GIT_{role}_{what}": f"person{at}" for role in ("AUTHOR", "COMMITTER") for what, at in _WHO}
    return {**os.environ, **who, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


_WHO = (("NAME", ""), ("EMAIL", "@acme.example"))


def _git(folder: Path, *args: str) -> str:
    ran = subprocess.run(
        ["git", *args],  # noqa: S607 - the git that the scripts find
        cwd=folder,
        env=_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
