"""The relock of the action: one commit with the lock alone, to the branch of a bot's pull request and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.actions import BOT_EMAIL, REPOSITORY, make_checkout, run_step

if TYPE_CHECKING:
    from support.actions import Checkout, Ran

pytestmark = pytest.mark.no_torch

BRANCH = "renovate/acme-base"
LOCK = "echo locked >registry.lock"


def stand_in(checkout: Checkout, lock: str, *codes: str, status: int = 1, registry: str = "registry.yaml") -> None:
    """A program whose check finds these codes, one a model, and whose lock runs a command, after which all is well."""
    path = str(checkout.work / registry)
    models = [{"model": f"acme/m{number}", "findings": [{"code": code}]} for number, code in enumerate(codes)]
    (checkout.root / "found").write_text(json.dumps({"registry": path, "models": models}))
    checkout.stand_in(f"""\
if [ "$1" = check ]; then cat {checkout.root}/found; exit {status}; fi
echo '{{"registry": "{path}", "models": []}}' >{checkout.root}/found
{lock}""")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The branch of a bot that moved a pin, checked out as the workflow does, and a program that writes a lock."""
    checkout = make_checkout(tmp_path)
    checkout.git("checkout", "--quiet", "-b", BRANCH)
    checkout.commit({"registry.yaml": "moved\n"}, "Move a pin")
    checkout.git("push", "--quiet", "origin", BRANCH)
    checkout.git("checkout", "--quiet", "--detach")
    stand_in(checkout, LOCK, "lock-stale")
    return checkout


def relock(checkout: Checkout, *, branch: str = BRANCH, repository: str = REPOSITORY, **inputs: str) -> Ran:
    """Run the step for a pull request from ``branch`` of ``repository``."""
    github: dict[str, Any] = {
        "head_ref": branch,
        "event": {
            "pull_request": {"head": {"repo": {"full_name": repository}}},
            "repository": {"default_branch": "main"},
        },
    }
    return run_step(checkout, inputs={"command": "relock", **inputs}, github=github)


def branches(checkout: Checkout) -> str:
    """Every branch of the remote with its commit."""
    return checkout.remote("for-each-ref")


def test_pushes_the_lock_alone(checkout: Checkout) -> None:
    """The lock is committed on top of the branch, by the bot, and whatever else lies about is left."""
    head, main = checkout.git("rev-parse", "HEAD"), checkout.remote("rev-parse", "main")
    (checkout.work / "stray").write_text("left by an earlier step")
    (checkout.work / "registry.yaml").write_text("moved\nedited by an earlier step\n")

    ran = relock(checkout)

    assert ran.status == 0, ran.log
    assert ran.calls == ["check --offline --json [registry.yaml]", "lock -- acme/m0 [registry.yaml]"]
    assert checkout.remote("log", "-1", "--format=%P %ae %ce", BRANCH) == f"{head} {BOT_EMAIL} {BOT_EMAIL}"
    assert checkout.remote("diff", "--name-only", head, BRANCH) == "registry.lock"
    assert "[dependabot skip]" in checkout.remote("log", "-1", "--format=%B", BRANCH)
    assert checkout.remote("rev-parse", "main") == main


def test_current_lock_is_left(checkout: Checkout) -> None:
    """Run on its own commit it does nothing, with status 0: one push does not lead to the next."""
    assert relock(checkout).status == 0
    before = branches(checkout)

    ran = relock(checkout)

    assert ran.status == 0
    assert "registry.lock is current" in ran.log
    assert branches(checkout) == before


def test_never_twice_in_a_row(checkout: Checkout) -> None:
    """Where its own commit does not make the lock current, the second run fails instead of pushing for ever."""
    stand_in(checkout, LOCK, "lock-stale")
    assert relock(checkout).status == 0
    stand_in(checkout, "echo otherwise >registry.lock", "lock-stale")
    before = branches(checkout)

    ran = relock(checkout)

    assert ran.status == 1
    assert "the last commit wrote registry.lock" in ran.log
    assert branches(checkout) == before


@pytest.mark.parametrize("status", [0, 1, 3, 5])
def test_locks_what_is_stale(checkout: Checkout, status: int) -> None:
    """Only entries whose lock is missing or of other pins are asked for, whatever else the check finds."""
    stand_in(checkout, LOCK, "lock-stale", "file-missing", "lock-missing", "not-checked", status=status)

    assert relock(checkout).calls[1:] == ["lock -- acme/m0 acme/m2 [registry.yaml]"]


def test_nothing_is_stale(checkout: Checkout) -> None:
    """Where no entry needs it, nothing is locked."""
    stand_in(checkout, LOCK, "file-missing")

    ran = relock(checkout)

    assert (ran.status, len(ran.calls)) == (0, 1)


def test_unusable_registry(checkout: Checkout) -> None:
    """Where the check has no models to tell of, because it cannot read the registry, the step fails."""
    checkout.stand_in("""echo '{"error": {"code": "unknown-key"}}'; exit 2""")
    before = branches(checkout)

    ran = relock(checkout)

    assert ran.status == 1
    assert "cannot be used" in ran.log
    assert "unknown-key" in ran.log
    assert branches(checkout) == before


@pytest.mark.parametrize("registry", ["deploy/models.yaml", "deploy.d/pins"])
def test_follows_the_registry(checkout: Checkout, registry: str) -> None:
    """The lock lies where overlay puts that of the registry that is named, whatever its suffix."""
    lock = Path(registry).with_suffix(".lock")
    write = f"mkdir -p {lock.parent}; echo locked >{lock}"
    stand_in(checkout, write, "lock-missing", registry=registry)

    ran = relock(checkout, registry=registry)

    assert ran.calls[1:] == [f"lock -- acme/m0 [{registry}]"]
    assert checkout.remote("show", f"{BRANCH}:{lock}") == "locked"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"branch": ""}, "pull requests only"),
        ({"branch": "main"}, "never pushes to the default branch"),
        ({"repository": "stranger/models"}, "the branch is in stranger/models"),
        ({"branch": "gone"}, "gone is at no commit"),
    ],
    ids=["no pull request", "default branch", "fork", "deleted branch"],
)
def test_refuses(checkout: Checkout, change: dict[str, str], said: str) -> None:
    """Where it may not push, it says so before anything is locked."""
    checkout.git("push", "--quiet", "origin", "HEAD:refs/heads/odd/refs/heads/gone")  # git ls-remote finds it for gone
    before = branches(checkout)

    ran = relock(checkout, **change)

    assert ran.status == 1
    assert said in ran.log
    assert ran.calls == []
    assert branches(checkout) == before


def test_refuses_a_commit_that_is_not_the_tip(checkout: Checkout) -> None:
    """A merge commit, or a branch that moved on, is not added to."""
    head = checkout.git("rev-parse", "HEAD")
    checkout.commit({"registry.yaml": "moved again\n"})
    checkout.git("push", "--quiet", "origin", f"HEAD:{BRANCH}")
    checkout.git("checkout", "--quiet", "--detach", head)
    before = branches(checkout)

    ran = relock(checkout)

    assert ran.status == 1
    assert "the branch moved on" in ran.log
    assert "${{ github.event.pull_request.head.sha }}" in ran.log
    assert ran.calls == []
    assert branches(checkout) == before


@pytest.mark.parametrize("to", ["HEAD~1", "side"], ids=["back", "on"])
def test_branch_that_moves_meanwhile(checkout: Checkout, to: str) -> None:
    """A branch that moves while the lock is made, back even, is not pushed to."""
    ahead = checkout.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Ahead")
    checkout.git("branch", "side", ahead)
    target = checkout.git("rev-parse", to)
    stand_in(checkout, f"{LOCK}; git push --quiet --force origin {to}:refs/heads/{BRANCH}", "lock-stale")

    ran = relock(checkout)

    assert ran.status != 0
    assert "stale info" in ran.log
    assert checkout.remote("rev-parse", BRANCH) == target


def test_failing_lock(checkout: Checkout) -> None:
    """The status of a lock that cannot be made is that of the step, and half of it is not committed."""
    stand_in(checkout, f"{LOCK}; exit 5", "lock-stale")
    before = branches(checkout)

    assert relock(checkout).status == 5
    assert branches(checkout) == before


def test_ignored_lock(checkout: Checkout) -> None:
    """A lock that git is told to ignore is an error, not a current lock."""
    (checkout.work / ".git/info/exclude").write_text("*.lock\n")

    ran = relock(checkout)

    assert ran.status == 1
    assert "ignored" in ran.log


def test_hooks_of_the_checkout_do_not_run(checkout: Checkout) -> None:
    """A hook that an earlier step, such as pre-commit, left behind has no say."""
    for name in ("pre-commit", "pre-push"):
        hook = checkout.work / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)

    assert relock(checkout).status == 0
