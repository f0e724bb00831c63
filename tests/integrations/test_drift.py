"""The nightly drift of the action, against a stand-in for GitHub's REST API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.actions import REPOSITORY, make_checkout, run_step
from support.github_issues import TOKEN, Issues, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.actions import Checkout, Ran

pytestmark = pytest.mark.no_torch

TITLE = "Pinned model repos have moved"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A project."""
    return make_checkout(tmp_path)


@pytest.fixture
def issues() -> Iterator[Issues]:
    """A repository without an issue."""
    found = Issues()
    with serve(found):
        yield found


def drift(checkout: Checkout, issues: Issues, status: int, report: str = "", token: str = TOKEN) -> Ran:
    """Run the step on a night when ``overlay outdated`` says ``report`` and ends with ``status``."""
    (checkout.root / "report").write_text(report)
    checkout.stand_in(f'cat "{checkout.root}/report"; echo progress >&2; exit {status}')
    return run_step(
        checkout,
        inputs={"command": "drift", "token": token},
        GITHUB_API_URL=issues.url,
        GITHUB_SERVER_URL="https://github.example",
        GITHUB_RUN_ID="7",
    )


def test_one_issue_from_drift_to_rest(checkout: Checkout, issues: Issues) -> None:
    """The first night opens an issue, the next writes it anew, a good one closes it; the next drift opens another."""
    first = drift(checkout, issues, 1, "acme/base: moved to 1111")
    assert first.status == 0, first.log
    assert first.calls == ["outdated --exit-code [registry.yaml]"]
    assert "acme/base: moved to 1111" in first.log
    (issue,) = issues.issues
    assert (issue["title"], issue["labels"], issue["state"]) == (TITLE, ["overlay-drift"], "open")
    assert issue["body"].startswith("~~~text\nacme/base: moved to 1111\n~~~\n")
    assert f"https://github.example/{REPOSITORY}/actions/runs/7" in issue["body"]

    assert drift(checkout, issues, 1, "acme/base: moved to 2222").status == 0
    assert len(issues.issues) == 1
    assert "2222" in issue["body"]
    assert "1111" not in issue["body"]

    assert drift(checkout, issues, 0, "all at their heads").status == 0
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")

    assert drift(checkout, issues, 1, "acme/base: moved to 3333").status == 0
    assert [issue["state"] for issue in issues.issues] == ["closed", "open"]


def test_all_is_well(checkout: Checkout, issues: Issues) -> None:
    """Where nothing drifts and no issue is open, nothing is written."""
    assert drift(checkout, issues, 0).status == 0
    assert issues.changes == []


def test_issues_of_others_are_left(checkout: Checkout, issues: Issues) -> None:
    """Neither another issue with the label nor a pull request of the same title is touched."""
    others = [
        {"number": 1, "state": "open", "labels": ["overlay-drift"], "title": "Something else"},
        {"number": 2, "state": "open", "labels": ["overlay-drift"], "title": TITLE, "pull_request": {}},
        {"number": 3, "state": "open", "labels": [], "title": TITLE},
    ]
    issues.issues += [dict(other) for other in others]

    assert drift(checkout, issues, 1, "moved").status == 0
    assert issues.issues[3]["state"] == "open"
    assert drift(checkout, issues, 0).status == 0

    assert issues.issues[:3] == others
    assert issues.issues[3]["state"] == "closed"


@pytest.mark.parametrize("status", [2, 3, 5, 70])
def test_could_not_tell(checkout: Checkout, issues: Issues, status: int) -> None:
    """A night without an answer fails, and neither opens nor closes the issue."""
    assert drift(checkout, issues, 1, "moved").status == 0
    before = [dict(issue) for issue in issues.issues]

    ran = drift(checkout, issues, status)

    assert ran.status == status
    assert "it could not tell" in ran.log
    assert issues.issues == before


@pytest.mark.parametrize("how", ["token", "server"])
def test_api_that_refuses(checkout: Checkout, issues: Issues, how: str) -> None:
    """An issue that cannot be written fails the night; the token is in no log."""
    issues.broken = how == "server"
    token = "wrong-token" if how == "token" else TOKEN

    ran = drift(checkout, issues, 1, "moved", token=token)

    assert ran.status == 1
    assert "::error title=overlay drift::" in ran.log
    assert ("HTTP Error 401" if how == "token" else "HTTP Error 502") in ran.log
    assert token not in ran.log
    assert issues.changes == []


def test_report_cannot_leave_its_block(checkout: Checkout, issues: Issues) -> None:
    """Names that strangers chose stay quoted, however many tildes they have, and an endless report is cut."""
    hostile = "file ~~~\n~~~~\n@everyone [click](https://bad.example)\n" + "x" * 200_000

    assert drift(checkout, issues, 1, hostile).status == 0

    body = issues.issues[0]["body"]
    fence = re.match(r"~+", body)[0]
    assert len(fence) == 5
    assert body.count(fence) == 2
    assert body.index("@everyone") < body.rindex(fence)
    assert len(body) < 65_536
