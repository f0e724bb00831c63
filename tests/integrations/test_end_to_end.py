"""The action with the real program: a project's registry on the demo's repos, from a bot's bump to a green check."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from support.actions import OVERLAY_BIN, PROJECT, REPOSITORY, make_checkout, read_yaml, run_step
from support.contracts import MODEL, make_hub, next_overlay, next_source
from support.github_issues import TOKEN, Issues, serve

from overlay.demo.registry import write_registry

if TYPE_CHECKING:
    from pathlib import Path

    from support.actions import Checkout, Ran

    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

BRANCH = "renovate/source"


class Project:
    """A repository with a registry of the demo's model and its lock on main."""

    def __init__(self, root: Path) -> None:
        self.hub: HubFolder = make_hub(root)
        self.checkout: Checkout = make_checkout(root / "project")
        self.step("relock", pin=self.hub, branch="setup")
        self.checkout.git("push", "--quiet", "origin", "setup:main")
        self.base = self.checkout.git("rev-parse", "setup")

    def head(self, source: HubFolder) -> None:
        """Let the source's main be at this revision."""
        main = source.source_folder.with_name("main")
        main.unlink(missing_ok=True)
        main.symlink_to(source.source)

    def step(self, command: str, *, pin: HubFolder | None = None, branch: str = BRANCH, **environ: str) -> Ran:
        """Run a command of the action for a pull request, which moves the pins first where they are given."""
        git = self.checkout.git
        if pin is not None:
            git("checkout", "--quiet", "-B", branch)
            write_registry(self.checkout.work / "registry.yaml", pin)
            git("commit", "--quiet", "--all", "--message", "Move the pin")
            git("push", "--quiet", "--force", "origin", branch)
        head = {"repo": {"full_name": REPOSITORY}}
        base = {"sha": getattr(self, "base", "")}
        github: dict[str, Any] = {
            "head_ref": branch,
            "event": {"pull_request": {"head": head, "base": base}, "repository": {"default_branch": "main"}},
        }
        inputs = {"command": command, "token": TOKEN}
        return run_step(self.checkout, inputs=inputs, github=github, OVERLAY_HUB=str(self.hub.root), **environ)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose lock is current."""
    return Project(tmp_path)


def test_relock_then_check(project: Project) -> None:
    """A moved pin alone fails for its lock; relock pushes that, and the check of the new commit passes."""
    bumped = next_source(project.hub, "a card")
    (bumped.source_folder / "README.md").write_text("# Another card\n")

    stale = project.step("check", pin=bumped)
    relocked = project.step("relock")
    again = project.step("relock")
    checked = project.step("check")

    assert stale.status == 1, stale.log
    assert "lock-stale" in stale.log
    assert relocked.status == 0, relocked.log
    assert project.checkout.remote("diff", "--name-only", f"{BRANCH}~1", BRANCH) == "registry.lock"
    assert bumped.source in project.checkout.remote("show", f"{BRANCH}:registry.lock")
    assert (again.status, "registry.lock is current" in again.log) == (0, True), again.log
    assert checked.status == 0, checked.log
    assert MODEL in checked.files["GITHUB_STEP_SUMMARY"]


def test_relock_of_one_among_entries_that_cannot_be_read(project: Project) -> None:
    """A bot moves the overlay of one entry, which has no fingerprint: another one, gated by now, is not asked for."""
    registry, git = project.checkout.work / "registry.yaml", project.checkout.git
    other = project.hub.root / "acme/other"
    other.parent.mkdir()
    other.symlink_to(project.hub.source_folder.parent)
    git("checkout", "--quiet", "-B", BRANCH)
    entry = re.sub(r", fingerprint: \w+", "", registry.read_text().partition("models:\n")[2])
    registry.write_text(f"schema_version: 1\nmodels:\n{entry}{entry.replace(MODEL, 'acme/other')}")
    git("commit", "--quiet", "--all", "--message", "Add a model")
    git("push", "--quiet", "--force", "origin", BRANCH)
    both = project.step("relock")
    project.base = project.checkout.remote("rev-parse", BRANCH)
    git("reset", "--quiet", "--hard", project.base)

    other.unlink()
    bumped = next_overlay(project.hub, "a card")
    (bumped.overlay_folder / "README.md").write_text("# Another card\n")
    registry.write_text(registry.read_text().replace(project.hub.overlay, bumped.overlay, 1))
    git("commit", "--quiet", "--all", "--message", "Move the pin")
    git("push", "--quiet", "--force", "origin", BRANCH)
    relocked = project.step("relock")
    checked = project.step("check")

    assert both.status == 0, both.log
    assert relocked.status == 0, relocked.log
    assert bumped.overlay in project.checkout.remote("show", f"{BRANCH}:registry.lock")
    assert checked.status == 0, checked.log
    assert "fingerprint-differs" not in checked.log


def test_broken_bump_is_annotated(project: Project) -> None:
    """A bump to a commit in which a required file has another name fails, on the line of a pin."""
    bumped = next_source(project.hub, "rename")
    for path in bumped.source_folder.rglob("adapter_spec.json"):
        path.rename(path.with_name("adapter_config.json"))

    ran = project.step("check", pin=bumped)
    relocked = project.step("relock")

    assert ran.status == 1, ran.log
    assert re.search(r"^::error file=registry\.yaml,line=5,col=\d+,title=file-renamed", ran.log, re.MULTILINE), ran.log
    assert "file-renamed" in ran.files["GITHUB_STEP_SUMMARY"]
    assert "status=failed" in ran.files["GITHUB_OUTPUT"]
    assert relocked.status != 0, relocked.log
    assert project.checkout.remote("log", "-1", "--format=%s", BRANCH) == "Move the pin"


def test_nothing_changed(project: Project) -> None:
    """A pull request that touches no entry gets its status all the same."""
    project.checkout.git("checkout", "--quiet", "-B", BRANCH)
    project.checkout.commit({"README.md": "words"})

    ran = project.step("check")

    assert ran.status == 0, ran.log
    assert "nothing to check" in ran.log


def test_unusable_registry(project: Project) -> None:
    """A registry that cannot be read is an error on its line, not a crash."""
    (project.checkout.work / "registry.yaml").write_text("schema_version: 1\nmodels:\n  acme/base: {sauce: 1}\n")

    ran = project.step("check")

    assert ran.status == 2, ran.log
    assert "::error file=registry.yaml,line=3" in ran.log


def test_drift(project: Project) -> None:
    """The night after the source moved there is an issue with the advice; back at the head it is closed."""
    bumped = next_source(project.hub, "a card")
    (bumped.source_folder / "README.md").write_text("# Another card\n")
    issues = Issues()
    with serve(issues):
        variables = {"GITHUB_API_URL": issues.url, "GITHUB_SERVER_URL": "https://github.example", "GITHUB_RUN_ID": "7"}
        project.head(project.hub)
        still = project.step("drift", **variables)
        before = len(issues.issues)
        project.head(bumped)
        moved = project.step("drift", **variables)
        (issue,) = issues.issues
        body, state = issue["body"], issue["state"]
        project.head(project.hub)
        back = project.step("drift", **variables)

    assert (still.status, before) == (0, 0), still.log
    assert moved.status == 0, moved.log
    assert state == "open"
    assert f"advice: overlay bump {MODEL}\n" in body
    assert f"newest that hold: source {bumped.source[:12]}" in body
    assert back.status == 0, back.log
    assert issue["state"] == "closed"


def test_hook(project: Project) -> None:
    """The pre-commit hook passes with nothing of the Hub on this machine; a stale lock or a broken registry fails."""
    (hook,) = read_yaml(PROJECT / ".pre-commit-hooks.yaml")

    def run_hook() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(hook["entry"]),
            cwd=project.checkout.work,
            env={**os.environ, "PATH": f"{OVERLAY_BIN}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    fresh = run_hook()
    bumped = next_source(project.hub, "a card")
    write_registry(project.checkout.work / "registry.yaml", bumped)
    stale = run_hook()
    (project.checkout.work / "registry.yaml").write_text("schema_version: 1\nmodels:\n  acme/base: {sauce: 1}\n")
    broken = run_hook()

    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert stale.returncode == 1, stale.stdout + stale.stderr
    assert "registry.yaml:4:14: error[lock-stale]" in stale.stdout
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "registry.yaml:3:" in broken.stdout
