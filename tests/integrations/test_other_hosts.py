"""The pre-commit hook and the GitLab job: run as their hosts run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from support.actions import PROJECT, make_checkout, read_yaml

from overlay.cli._main import cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def hook() -> dict[str, Any]:
    """The one hook."""
    (only,) = read_yaml(PROJECT / ".pre-commit-hooks.yaml")
    return only


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("registry.yaml", True),
        ("registry.yml", True),
        ("registry.lock", True),
        ("old-registry.yaml", False),
        ("registry.yaml.orig", False),
        ("deploy/registry.yaml", False),
    ],
)
def test_hook_files(path: str, checked: bool) -> None:  # noqa: FBT001 - a column of the table
    """The hook runs for the registry at the top and its lock; pre-commit searches its pattern in the path."""
    assert bool(re.search(hook()["files"], path)) == checked


def test_hook_example() -> None:
    """The example names a hook that there is."""
    (repo,) = read_yaml(PROJECT / "integrations/pre-commit-config.yaml")["repos"]

    assert [found["id"] for found in repo["hooks"]] == [hook()["id"]]


def test_hook_runs_what_is_installed() -> None:
    """The hook starts the program on the PATH, without file names, so it installs nothing."""
    assert (hook()["language"], hook()["pass_filenames"]) == ("system", False)


@pytest.mark.parametrize(("status", "outcome"), [(0, 0), (1, 1), (2, 1), (3, 0), (5, 1)])
def test_hook_status(tmp_path: Path, status: int, outcome: int) -> None:
    """What is wrong fails the hook; what cannot be told without a connection does not."""
    checkout = make_checkout(tmp_path)
    checkout.stand_in(f"exit {status}")
    arguments = ["--registry", "a b.yaml"]

    ran = subprocess.run(
        [*shlex.split(hook()["entry"]), *arguments],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        cwd=checkout.work,
        check=False,
    )

    assert ran.returncode == outcome
    assert (tmp_path / "calls").read_text() == "check --offline --registry a b.yaml []\n"


@pytest.mark.parametrize("base", ["", "1" * 40], ids=["branch", "merge request"])
def test_gitlab_script(tmp_path: Path, base: str) -> None:
    """The job of GitLab checks what a merge request touches, and everything on a branch."""
    checkout = make_checkout(tmp_path)
    checkout.stand_in()
    job = read_yaml(PROJECT / "integrations/gitlab-ci.yml")["overlay check"]
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    if base:
        environ["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = base

    for shell in ("sh", "bash"):
        (tmp_path / "calls").write_text("")
        subprocess.run([shell, "-ec", "\n".join(job["script"])], env=environ, cwd=checkout.work, check=True)
        assert (tmp_path / "calls").read_text() == f"check{f' --base {base}' if base else ''} []\n"


def test_gitlab_installs_all_but_torch() -> None:
    """What the job installs is what the project depends on, less torch."""
    job = read_yaml(PROJECT / "integrations/gitlab-ci.yml")["overlay check"]
    (line,) = [line for line in job["before_script"] if "click" in line]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w.-]+", item)[0] for item in project["dependencies"]}

    assert set(shlex.split(line)[3:]) == names - {"torch"}


def test_gitlab_installs_overlay_from_its_repository() -> None:
    """It is on no index: the repository and the commit are the ones that the other examples leave open."""
    job = read_yaml(PROJECT / "integrations/gitlab-ci.yml")["overlay check"]
    texts = [path.read_text() for path in (PROJECT / "action.yml", PROJECT / "integrations/github/install.sh")]

    assert any(
        "--no-deps" in line and "git+https://github.com/OWNER/overlay@COMMIT" in line for line in job["before_script"]
    )
    assert all("git+https://github.com/OWNER/overlay@COMMIT" in text for text in texts)
    assert not any("model-overlay==" in text for text in texts)


def test_commands_exist() -> None:
    """The program has every command that the scripts, the hook and the job start."""
    texts = [path.read_text() for path in (PROJECT / "integrations").rglob("*.sh")]
    texts += [(PROJECT / ".pre-commit-hooks.yaml").read_text(), (PROJECT / "integrations/gitlab-ci.yml").read_text()]
    started = {"check"} | {
        name
        for text in texts
        for name in re.findall(r"^ *(?:entry: bash -c '|.* \|\| )?overlay (\w+)", text, re.MULTILINE)
    }

    assert started == {"check", "lock", "outdated"}
    assert started <= set(cli.list_commands(None))
