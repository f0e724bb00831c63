"""Keeping pins up to date: what moved upstream, whether the contract holds there, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from overlay.contract.subject import Subject
from overlay.errors import OverlayError
from overlay.upkeep.file_changes import UNCHANGED, Changes, changes, needed_files
from overlay.upkeep.search import Pair, Search, check_pinned, moved_to, repinned, search, standing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.contract.check import Report
    from overlay.registry import RepoRole, Resolution
    from overlay.upkeep.repos import Repos

__all__ = ["Advice", "Outlook", "RepoState", "outdated"]

Advice = Literal["current", "bump", "stay", "repair", "unknown"]


@dataclass(frozen=True, slots=True)
class RepoState:
    """One repo of a model, pinned and upstream.

    Attributes:
        role: What the entry has it for.
        pinned: None where it floats.
        head: Commit of its branch; None where that could not be told.
        behind: Commits between the two; None where the history, as far as it is known, lacks the pin.
        changes: Of needed files.
        why: What could not be told, and why.
    """

    repo: str
    role: RepoRole
    pinned: str | None
    head: str | None
    behind: int | None = None
    changes: Changes = UNCHANGED
    why: str | None = None

    @property
    def moved(self) -> bool:
        """Whether the head is another commit than the pin."""
        return self.head is not None and self.head != self.pinned


@dataclass(frozen=True, slots=True)
class Outlook:
    """What upstream means for a model.

    Attributes:
        advice: ``current``: source and overlay are at their heads. ``bump``: to ``search.pair``. ``stay``: nothing
            newer holds, and the pins do. ``repair``: the pins do not hold, or the fingerprint beside them is wrong; go
            to ``search.pair`` where there is one. ``unknown``: it could not be told.
        pinned: Report of the pins.
        trouble: Why something could not be told, where trying again may help.
    """

    model: str
    advice: Advice
    repos: tuple[RepoState, ...]
    pinned: Report
    search: Search | None = None
    trouble: OverlayError | None = None


def outdated(resolution: Resolution, repos: Repos) -> Outlook:
    """What moved upstream, whether the contract holds there, and what to do.

    Args:
        repos: Opens them.
    """
    entry = resolution.entry
    pinned = check_pinned(resolution, repos)
    states, trouble = [], pinned.trouble
    for role, pin in entry.roles:
        try:
            head = repos.histories.head(pin.repo)
            behind = repos.histories.behind(pin.repo, pin.revision) if pin.revision not in (None, head) else 0
            states.append(RepoState(pin.repo, role, pin.revision, head, behind))
        except OverlayError as error:
            if role != "need":  # where those are changes no advice
                trouble = trouble or error
            states.append(RepoState(pin.repo, role, pin.revision, None, why=error.message))
    found: Search | None = None
    try:
        if standing(pinned) == "failed" or any(state.moved and state.role != "need" for state in states):
            found = search(resolution, repos, pinned)
    except OverlayError as error:
        trouble = trouble or error
    try:
        states = _with_changes(resolution, states, repos)
    except OverlayError as error:
        is_gone = any(finding.code == "vanished" for finding in pinned.findings)  # which is all there is to say
        trouble = trouble or (None if is_gone else error)
    return Outlook(entry.model, _advice(states, pinned, found, trouble), tuple(states), pinned, found, trouble)


def _advice(states: Sequence[RepoState], pinned: Report, found: Search | None, trouble: OverlayError | None) -> Advice:
    if found is not None and found.pair is not None:
        return "repair" if pinned.status == "failed" else "bump"
    if trouble is not None or any(state.head is None and state.role != "need" for state in states):
        return "unknown"
    if pinned.status != "passed":
        return "repair" if pinned.status == "failed" else "unknown"
    return "stay" if found is not None else "current"


def _with_changes(resolution: Resolution, states: Sequence[RepoState], repos: Repos) -> list[RepoState]:
    """The states with what became of needed files between pins and heads."""
    heads = {state.repo: state.head for state in states if state.moved and state.pinned}
    if not heads:
        return list(states)
    before = repos.inventory(resolution)
    after = repos.inventory(_at_heads(resolution, heads))
    needed_before, needed_after = needed_files(Subject(before)), needed_files(Subject(after))
    found = {
        repo: changes(before.repos[repo], needed_before[repo], after.repos[repo], needed_after[repo]) for repo in heads
    }
    return [replace(state, changes=found.get(state.repo, UNCHANGED)) for state in states]


def _at_heads(resolution: Resolution, heads: Mapping[str, str | None]) -> Resolution:
    entry = resolution.entry
    needs = tuple(replace(need, pin=repinned(need.pin, heads.get(need.pin.repo))) for need in entry.needs)
    pair = Pair(heads.get(entry.source.repo), heads.get(entry.overlay.repo) if entry.overlay else None)
    moved = moved_to(resolution, pair)
    return replace(moved, entry=replace(moved.entry, needs=needs))
