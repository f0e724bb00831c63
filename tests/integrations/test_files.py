"""What is copied into other repositories: it parses, has the least rights, runs nothing that it was not given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from support.actions import PROJECT, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

ACTION = PROJECT / "action.yml"
EXAMPLES = sorted((PROJECT / "integrations/github/workflows").glob("*.yml"))
WORKFLOWS = [*EXAMPLES, *sorted((PROJECT / ".github/workflows").glob("*.yml"))]
SCRIPTS = sorted((PROJECT / "integrations/github").glob("*.sh"))
OWN = "OWNER/overlay@COMMIT"


def name_of(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """Every step of an action or a workflow."""
    content = read_yaml(path)
    jobs = [content["runs"]] if "runs" in content else content["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def text_of_uses(path: Path) -> Iterator[tuple[str, str]]:
    """What each ``uses`` names, with the comment behind it."""
    yield from re.findall(r"uses: (\S+)(.*)", path.read_text())


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=name_of)
def test_actions_are_pinned(path: Path) -> None:
    """Every action of others is named by a full commit, with its version beside it, and is one of GitHub's own."""
    used = [pair for pair in text_of_uses(path) if pair[0] != OWN]

    assert used
    for uses, comment in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", uses)
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


def test_one_commit_for_each_action() -> None:
    """An action is pinned at the same commit everywhere."""
    used = {uses for path in [ACTION, *WORKFLOWS] for uses, _ in text_of_uses(path)}

    assert len(used) == len({uses.partition("@")[0] for uses in used})


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_own_action_is_marked(path: Path) -> None:
    """What a user has to fill in says how to find it out, and stands there once."""
    assert [comment for uses, comment in text_of_uses(path) if uses == OWN] == [
        " # this action, at a full commit: git ls-remote URL"
    ]


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=name_of)
def test_no_expression_in_a_script(path: Path) -> None:
    """Values reach a shell through variables: an expression in a script would run what a stranger named a branch."""
    for step in steps_of(path):
        assert "${{" not in step.get("run", "")
        assert "script" not in step.get("with", {})


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_least_rights(path: Path) -> None:
    """A workflow has no rights; a job asks for those that it needs, runs for a limited time, and one at a time."""
    workflow = read_yaml(path)

    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    assert "pull_request_target" not in workflow["on"]
    needed = {"overlay-relock.yml": {"contents": "write"}, "overlay-drift.yml": {"contents": "read", "issues": "write"}}
    for job in workflow["jobs"].values():
        checks_out = any("checkout" in step.get("uses", "") for step in job["steps"])
        if checks_out:
            assert job["permissions"] == needed.get(path.name, {"contents": "read"})
            assert job["timeout-minutes"] <= 45
        else:
            assert "permissions" not in job


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_credentials_are_kept_for_the_push_alone(path: Path) -> None:
    """Only the workflow that pushes leaves its token in the checkout."""
    for step in steps_of(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            kept = step["with"].get("persist-credentials", True)
            assert kept == (path.name == "overlay-relock.yml")


def test_required_status_always_reports() -> None:
    """The check has no filter, so that its status comes on every pull request; its name is the one to require."""
    workflow = read_yaml(PROJECT / "integrations/github/workflows/overlay-check.yml")

    assert workflow["on"]["pull_request"] is None
    assert [job["name"] for job in workflow["jobs"].values()] == ["overlay check"]
    assert not any("if" in job for job in workflow["jobs"].values())


def test_relock_is_for_bots_of_this_repository() -> None:
    """A fork's pull request, or a person's, starts no job that may write."""
    (job,) = read_yaml(PROJECT / "integrations/github/workflows/overlay-relock.yml")["jobs"].values()

    assert "head.repo.full_name == github.repository &&" in job["if"]
    assert "github.event.pull_request.user.login" in job["if"]
    assert job["steps"][0]["with"]["ref"] == "${{ github.event.pull_request.head.sha }}"


def test_inputs_are_used() -> None:
    """Each input of the action is read, and each that an example gives exists."""
    action = read_yaml(ACTION)
    text = ACTION.read_text()

    assert [name for name in action["inputs"] if f"inputs.{name}" not in text] == []
    for path in EXAMPLES:
        for step in steps_of(path):
            if step.get("uses") == OWN:
                assert step.get("with", {}).keys() <= action["inputs"].keys()


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_scripts_fail_early(path: Path) -> None:
    """A script stops at the first command that fails, at a variable that is not set, and can be executed."""
    lines = path.read_text().splitlines()

    assert lines[0] == "#!/usr/bin/env bash"
    assert next(line for line in lines if line and not line.startswith("#")) == "set -euo pipefail"
    assert path.stat().st_mode & 0o111


def test_every_script_is_used() -> None:
    """Each script is started by the action, by its name or by the command that it is called after."""
    action = ACTION.read_text()
    commands = {"check.sh", "relock.sh", "drift.sh"}

    assert {path.name for path in SCRIPTS} == commands | set(re.findall(r"/([\w-]+\.sh)", action))


@pytest.mark.parametrize(
    "path", [*EXAMPLES, *(path for path in (PROJECT / "integrations").iterdir() if path.is_file())], ids=name_of
)
def test_documentation_shows_the_files(path: Path) -> None:
    """What the documentation shows is the file that it links to, which the tests run, to the letter."""
    page = (PROJECT / "docs/how-to/check-in-ci.md").read_text()
    shown = re.findall(
        rf"\]\(\.\./\.\./{re.escape(name_of(path))}\).*?\n\n```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    )

    assert shown == [path.read_text()]


def test_documentation_names_every_input() -> None:
    """The table of the documentation has each input and output of the action, with its default."""
    page = (PROJECT / "docs/how-to/check-in-ci.md").read_text()
    action = read_yaml(ACTION)

    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(action["inputs"])
    for name, given in action["inputs"].items():
        if given["default"] and "$" not in given["default"]:
            assert f"| `{name}` | `{given['default']}` |" in page
    assert all(f"`{name}`" in page for name in action["outputs"])
