"""The check of the action: which base it compares with, and the one status that it ends with."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.actions import REPOSITORY, make_checkout, run_step

if TYPE_CHECKING:
    from pathlib import Path

    from support.actions import Checkout

pytestmark = pytest.mark.no_torch

ZEROS = "0" * 40
ABSENT = "ab" * 20


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A clone with three commits and a program that only notes how it was called."""
    checkout = make_checkout(tmp_path)
    checkout.commit({"other": "word"})
    checkout.commit({"other": "content"})
    checkout.git("push", "--quiet", "origin", "main")
    checkout.stand_in()
    return checkout


def event(name: str, commit: str) -> dict[str, Any]:
    """The github context of an event that names a base."""
    return {
        "pull_request": {"event": {"before": ABSENT, "pull_request": {"base": {"sha": commit}}}},
        "merge_group": {"event": {"merge_group": {"base_sha": commit}}},
        "push": {"event": {"before": commit}},
        "schedule": {"event": {}},
    }[name]


@pytest.mark.parametrize("name", ["pull_request", "merge_group", "push"])
def test_base_of_the_event(checkout: Checkout, name: str) -> None:
    """A change is compared with the commit that the event names."""
    base = checkout.git("rev-parse", "HEAD~1")

    ran = run_step(checkout, github=event(name, base))

    assert ran.status == 0
    assert ran.calls == [f"check --output github --fail-on error --base {base} [registry.yaml]"]


def test_inputs(checkout: Checkout) -> None:
    """Inputs choose base, threshold and registry, and no shell takes them apart."""
    base = checkout.git("rev-parse", "HEAD~1")
    hostile = "a b'; touch hacked; $(touch hacked)/registry.yaml"

    ran = run_step(
        checkout,
        inputs={"base": "HEAD~1", "fail-on": "never", "registry": hostile},
        github=event("push", checkout.git("rev-parse", "HEAD")),
    )

    assert ran.calls == [f"check --output github --fail-on never --base HEAD~1 [{hostile}]"]
    assert checkout.git("rev-parse", "HEAD~1") == base
    assert checkout.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("base", "said"),
    [("", ""), (ZEROS, "the first push of this branch"), (ABSENT, f"the base {ABSENT} cannot be fetched")],
    ids=["none", "zeros", "absent"],
)
def test_without_a_base(checkout: Checkout, base: str, said: str) -> None:
    """Without a commit to compare with, every entry is checked, and a notice says why."""
    ran = run_step(checkout, github=event("push", base))

    assert ran.status == 0
    assert ran.calls == ["check --output github --fail-on error [registry.yaml]"]
    assert said in ran.log
    assert ("::notice" in ran.log) == bool(said)


@pytest.mark.parametrize("depth", [["--depth=1"], []], ids=["shallow", "whole"])
def test_base_is_fetched(checkout: Checkout, depth: list[str]) -> None:
    """A base that the clone lacks is fetched; into a shallow clone without what was before it."""
    base = checkout.git("rev-parse", "HEAD~1")
    checkout.git("checkout", "--quiet", "-b", "side")
    side = checkout.commit({"side": "1"})
    checkout.git("push", "--quiet", "origin", "side")
    shutil.rmtree(checkout.work)
    url = f"file://{checkout.root}/remote.git"
    checkout.work.mkdir()
    checkout.git("clone", "--quiet", "--single-branch", "--branch=main", *depth, url, ".")
    wanted = base if depth else side

    ran = run_step(checkout, github=event("push", wanted))

    assert ran.calls == [f"check --output github --fail-on error --base {wanted} [registry.yaml]"]
    assert checkout.git("rev-list", "--count", wanted) == ("1" if depth else "4")


@pytest.mark.parametrize("status", [0, 1, 2, 5, 70])
def test_one_status(checkout: Checkout, status: int) -> None:
    """The step ends as the check does; what is neither good nor bad is said to be neither."""
    checkout.stand_in(f"exit {status}")

    ran = run_step(checkout)

    assert ran.status == status
    assert ("it could not tell" in ran.log) == (status > 1)
    assert ran.log.count("::error") == (status > 1)


def test_unknown_command(checkout: Checkout) -> None:
    """A command that there is not, a path above all, is refused: it never passes as a check."""
    ran = run_step(checkout, inputs={"command": "../github/check"})

    assert ran.status == 2
    assert "the input command is check, relock or drift" in ran.log
    assert ran.calls == []


@pytest.mark.parametrize(("command", "seen"), [("check", ""), ("relock", ""), ("drift", "secret")])
def test_token_goes_to_drift_alone(checkout: Checkout, command: str, seen: str) -> None:
    """What reads a stranger's pull request has no token of the repository in its environment."""
    checkout.stand_in(f'echo "token=$GITHUB_TOKEN." >{checkout.root}/seen; exit 70')
    head = checkout.git("rev-parse", "HEAD")
    checkout.git("push", "--quiet", "origin", "HEAD:refs/heads/bot")
    pull_request = {"head": {"repo": {"full_name": REPOSITORY}}, "base": {"sha": head}}

    run_step(
        checkout,
        inputs={"command": command, "token": "secret"},
        github={"head_ref": "bot", "event": {"pull_request": pull_request}},
    )

    assert (checkout.root / "seen").read_text() == f"token={seen}.\n"
