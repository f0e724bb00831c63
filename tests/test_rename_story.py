"""The published story, end to end on a local Hub: what the program says at each turn of a rename upstream."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rename_story import MODEL, NEW, OLD, Step, Story, page, tell

pytestmark = pytest.mark.slow

Chapters = dict[str, tuple[list[Step], int, str, str]]

PAGE = Path(__file__).parents[1] / "docs/tutorial/a-rename-upstream.md"


def without_figures(text: str) -> str:
    """The text without bytes and seconds."""
    return re.sub(r"[0-9.]+ ([kMG]?B|s)\b", "…", text)


def last(story: Story, command: str) -> Step:
    """The newest step of a command."""
    return next(step for step in reversed(story.steps) if step.command.startswith(command))


@pytest.fixture(scope="module")
def chapters(tmp_path_factory: pytest.TempPathFactory) -> Chapters:
    """The whole story: by chapter the steps so far, bytes of weights sent so far, registry and lock."""
    told = {}
    for story, chapter in tell(tmp_path_factory.mktemp("story")):
        files = [(story.project / name).read_text() for name in ("registry.yaml", "registry.lock")]
        told[chapter] = (list(story.steps), story.downloaded(), *files)
    return told


def test_pinned(chapters: Chapters) -> None:
    """From an empty folder: everything is pinned at today's commits, locked and built."""
    steps = chapters["pinned"][0]

    assert [0] * len(steps) == [step.status for step in steps]
    assert chapters["pinned"][1] > 0


def test_outdated_says_so_before_anyone_deploys(chapters: Chapters) -> None:
    """The rename is named, the contract at the heads does not hold, and staying is said to be safe."""
    step = chapters["renamed"][0][-2]

    assert OLD in step.stdout
    assert NEW in step.stdout
    assert "stay" in step.stdout
    assert "safe" in step.stdout


def test_no_bump_while_no_fixed_overlay_exists(chapters: Chapters) -> None:
    """`bump` finds no newer pair that holds, says so, and leaves registry and lock alone."""
    step = chapters["renamed"][0][-1]

    assert step.status == 0
    assert NEW in step.stdout + step.stderr
    assert chapters["renamed"][2:] == chapters["pinned"][2:]


def test_naive_bump_fails_with_the_rename_named(chapters: Chapters) -> None:
    """A bump of the source alone is stopped, at its place in the file, with both names; no weight is downloaded."""
    step = chapters["naive"][0][-2]

    assert step.status == 1
    assert "error[file-renamed]" in step.stdout
    assert "registry.yaml:" in step.stdout
    assert OLD in step.stdout
    assert NEW in step.stdout
    assert chapters["naive"][1] == chapters["pinned"][1]


def test_right_bump_costs_nothing(chapters: Chapters) -> None:
    """Once the overlay asks for the new name, `outdated` advises the pair, and the bump to it costs 0 bytes."""
    outdated, (bump, check) = chapters["fixed"][0][-1], chapters["bumped"][0][-2:]

    assert f"overlay bump {MODEL}" in outdated.stdout
    assert (bump.status, check.status) == (0, 0)
    assert "0 bytes" in bump.stdout
    assert "0 bytes" in check.stdout
    before, after = chapters["pinned"][2].splitlines(), chapters["bumped"][2].splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert changed
    assert all("revision" in line or "fingerprint" in line for line in changed)


def test_materialize_writes_no_weight_byte(chapters: Chapters) -> None:
    """A host that has the model links it anew: nothing downloaded, read or written."""
    step = chapters["warm"][0][-1]

    assert step.status == 0
    assert chapters["warm"][1] == 0
    assert "nothing to move" in step.stdout


def test_page_is_of_this_program(chapters: Chapters) -> None:
    """The tutorial shows what the commands print today; sizes and seconds are those of the run that wrote it."""
    published, now = (without_figures(text) for text in (PAGE.read_text(), page(chapters["warm"][0])))

    assert published == now
