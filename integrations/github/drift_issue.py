"""Open, update or close the one issue that tells of drift: ``drift_issue.py open REPORT``, ``drift_issue.py close``.

Needs nothing but Python. From the environment: GITHUB_TOKEN, GITHUB_API_URL, GITHUB_REPOSITORY, and for the link to the
run GITHUB_SERVER_URL and GITHUB_RUN_ID.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

TITLE = "Pinned model repos have moved"
LABEL = "overlay-drift"
LONGEST = 60_000  # characters; GitHub takes 65536 in an issue


def main(verb: str, *report: str) -> None:
    """Bring the issue to what was found."""
    issue = find()
    if verb == "open":
        body = describe(Path(*report).read_text(encoding="utf-8", errors="replace"))
        if issue is None:
            call("POST", "issues", {"title": TITLE, "labels": [LABEL], "body": body})
        else:
            call("PATCH", f"issues/{issue}", {"body": body})
    elif issue is not None:
        call("PATCH", f"issues/{issue}", {"state": "closed", "state_reason": "completed"})


def find() -> int | None:
    """Number of the open issue, the oldest of several."""
    found = call("GET", f"issues?state=open&labels={LABEL}&sort=created&direction=asc&per_page=100")
    return next((item["number"] for item in found if item["title"] == TITLE and "pull_request" not in item), None)


def describe(report: str) -> str:
    """The report as Markdown. It quotes names that strangers chose: the fence is longer than any run of its own."""
    run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format_map(os.environ)
    shown = report.strip()[:LONGEST]
    fence = "~" * max([3, *(len(tildes) + 1 for tildes in re.findall("~+", shown))])
    return (
        f"{fence}text\n{shown}\n{fence}\n\n"
        f"Found by [`overlay outdated`]({run}). The issue closes when nothing needs attention.\n"
    )


def call(method: str, path: str, content: Any = None) -> Any:
    """One request to the repository's part of GitHub's REST API."""
    request = Request(  # noqa: S310 - the runner's own address
        "{GITHUB_API_URL}/repos/{GITHUB_REPOSITORY}/".format_map(os.environ) + path,
        method=method,
        data=None if content is None else json.dumps(content).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "Content-Type": "application/json",
            "User-Agent": "overlay-drift",
        },
    )
    with urlopen(request, timeout=30) as response:  # noqa: S310 - as above
        return json.load(response)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.stdout.write(f"::error title=overlay drift::the issue cannot be brought up to date: {error}\n")
        sys.exit(1)
