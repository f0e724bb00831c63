"""A build that a store helps: it is asked for the tree, then for each file, and is offered what was built.

What the store says is a claim. Digests are proven on the way in; what they should be, the lock in force knows, or
whoever may write to the store is trusted with. Whatever is wrong with the store becomes a note, and the build does by
itself what the store did not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overlay.errors import CannotWrite, OverlayError
from overlay.materialization.learning import settled_survey
from overlay.materialization.lookup import (
    SAME_FACTORS,
    SAME_INPUTS,
    carried_file,
    layout_of,
    remember,
    written_file,
)
from overlay.materialization.sharing.bringing import bring, is_gone
from overlay.materialization.sharing.pull import take
from overlay.materialization.sharing.push import offer
from overlay.materialization.sharing.soundness import payload_of
from overlay.materialization.sharing.stored import find_offer
from overlay.materialization.state import is_settled
from overlay.materialization.survey import Counters, counters_of, downloading_counters
from overlay.planning.outputs import CarriedFile, SafetensorsFile
from overlay.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from overlay.cache import Cache
    from overlay.hub import Repo
    from overlay.materialization.job import Job
    from overlay.materialization.publishing import Materialization
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.request import Options, Phase
    from overlay.materialization.sharing.stored import Offer
    from overlay.materialization.survey import Fill, How, Step, Work
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution
    from overlay.store import Store

__all__ = ["Filling", "filling_of"]

_REQUESTS = 16  # at a time


@contextmanager
def filling_of(options: Options) -> Iterator[Filling]:
    """What the store of these options gives; nothing is asked yet.

    Raises:
        InvalidUsage: Nothing that is installed here knows such a URL.
    """
    if options.store is None:
        yield Filling(None, options)
        return
    with open_store(options.store) as store:
        yield Filling(store, options)


class Filling:
    """What a store gives to one build; nothing without a store.

    Attributes:
        notes: What the store did not do, for the user; grows as it happens.
    """

    def __init__(self, store: Store | None, options: Options) -> None:
        self.notes: list[str] = []
        self._store = store
        self._options = options
        self._entries: dict[str, dict[str, Any] | None] = {}  # action entries of the store, as far as they were asked
        self._objects: dict[str, bool] = {}  # by digest: whether it has the file; not after that failed to come
        self._spent = Counters()  # on files that came where not all did

    def tree(self, resolution: Resolution, registry: Registry) -> Offer | None:
        """The tree that the store has for a model."""
        if self._store is None or self._options.only:
            return None
        if not is_settled(resolution):
            self._note("a pin floats, or a folder takes the place of a repo: the store is asked for single files only")
            return None
        try:
            return find_offer(self._store, resolution, registry, self._options)
        except OverlayError as error:
            self._failed(error)
        return None

    def taken(self, offer: Offer, phase: Phase, on_wait: Callable[[str], None] | None) -> Materialization | None:
        """Bring a tree and publish it; None where not all of it came.

        Raises:
            OverlayError: The cache cannot be written.
        """
        if self._store is None:
            return None
        try:
            done, brought = take(self._store, offer, self._options, phase, on_wait)
        except CannotWrite as full:
            if full.code != "no-room":
                raise
            self._note(f"{full.message} for the tree of the store: built here")  # with links that may take less
            return None
        for error in brought.errors:
            self._failed(error)
        if done is None:
            files = {file.digest: file for file in offer.record.outputs}
            self._spend(files[digest] for digest in brought.came)
        return done

    @property
    def fill(self) -> Fill | None:
        """Finds in the store what the cache does not have; None where no store is to be asked."""
        return self._steps if self._store is not None else None

    def _steps(self, steps: tuple[Step, ...], repos: Mapping[str, Repo]) -> tuple[Step, ...]:
        with ThreadPoolExecutor(_REQUESTS) as pool:
            found = pool.map(lambda step: self._find(step, repos), steps)
            pairs = list(zip(steps, found, strict=True))
        if self.fill is None:  # it went while it was asked
            return steps
        filled, coming = [], set[str]()
        for step, file in pairs:
            if file is None:
                filled.append(step)
                continue
            how: How = "present" if file[0].digest in coming else "pull"  # of equal files one comes
            coming.add(file[0].digest)
            known = replace(step.found, entry=file[0], why=f"{file[1]}, in the store", unlearned=())
            filled.append(replace(step, how=how, found=known, why="", tried=True, links_take_room=False))
        return tuple(filled)

    def filled(self, plan: Plan, job: Job) -> Work:
        """The settled survey of a run, after what the store has came; where a file did not, the rest without it.

        Raises:
            OverlayError: As ``settled_survey``.
        """
        repos = job.inventory.repos
        while True:
            work = settled_survey(plan, repos, job.cache, job.memo, job.options, job.phase, self.fill)
            if self._brought(work, job):
                return replace(work, counters=work.counters + self._spent)
            # What learning took is not to be done again, and not to be forgotten.
            self._spent += work.counters - counters_of(work.steps) - downloading_counters(work.missing, repos)

    def offer(self, model: str, resolution: Resolution, phase: Phase) -> None:
        """Let others have what is published."""
        if self._store is None or self._options.only or not is_settled(resolution):
            return
        try:
            offer(model, self._store, self._options, phase=phase)
        except OverlayError as error:
            self._note(f"not offered to the store: {error.message}")

    def _find(self, step: Step, repos: Mapping[str, Repo]) -> tuple[RecordedFile, str] | None:
        """What the store has for an output that is to be made, and why that is it."""
        output, found = step.output, step.found
        if not step.moves_bytes or not isinstance(output, CarriedFile | SafetensorsFile):
            return None
        if isinstance(output, CarriedFile):
            source, repo = output.input, repos[output.input.repo]
            # A link costs nothing; what the Hub names by a git blob is small, and the plan has fetched it.
            if repo.local(source.path) is not None or not source.digest.startswith("sha256:"):
                return None
            file = carried_file(output, repo, source.digest)
            return (file, SAME_INPUTS) if self._has(file) else None
        for key, why in ((found.action, SAME_INPUTS), (found.factor_action, SAME_FACTORS)):
            entry = self._entry(key) if key else None
            made = written_file(output.path, layout_of(output), entry) if entry else None
            if made is not None and self._has(made):
                return made, why
        return None

    def _entry(self, key: str) -> dict[str, Any] | None:
        if key not in self._entries and self._store is not None:
            try:
                self._entries[key] = self._store.find_action(key)
            except OverlayError as error:
                self._entries[key] = None
                self._failed(error)
        return self._entries.get(key)

    def _has(self, file: RecordedFile) -> bool:
        if file.digest not in self._objects and self._store is not None:
            try:
                self._objects[file.digest] = self._store.find_object(file.digest, file.size) is not None
            except OverlayError as error:
                self._objects[file.digest] = False
                self._failed(error)
        return self._objects.get(file.digest, False)

    def _brought(self, work: Work, job: Job) -> bool:
        """Whether all that the work takes from the store is in the cache now."""
        wanted = {file.digest: file for file in work.pulled}
        if not wanted or self._store is None:
            return not wanted
        brought = bring(self._store, job.cache, wanted.values(), job.phase)
        for error in brought.errors:
            self._failed(error)
        for step in work.steps:
            if step.how == "pull" and step.found.entry is not None and step.found.entry.digest in brought.came:
                if _is_of(step, step.found.entry, job.cache):
                    remember(job.cache, step.output, step.found, step.found.entry)
                else:
                    brought.came.discard(step.found.entry.digest)
                    self._note(f"{step.output.path}: what the store has for it is another file")
        if brought.came == wanted.keys():
            return True
        self._objects.update(dict.fromkeys(wanted.keys() - brought.came, False))
        self._spend(wanted[digest] for digest in brought.came)
        return False

    def _spend(self, files: Iterator[RecordedFile]) -> None:
        payload = sum(payload_of(file) for file in files)
        self._spent += Counters(downloaded=payload, written=payload)

    def _failed(self, error: OverlayError) -> None:
        if self._store is None:  # said already
            return
        if is_gone(error):
            self._store = None
            self._note(f"{error.message}: built without the store")
        else:
            self._note(f"{error.message}: built here, with what single files the store has")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _is_of(step: Step, file: RecordedFile, cache: Cache) -> bool:
    """Whether an object is what this output would be, as far as that can be told without making it."""
    if not isinstance(step.output, SafetensorsFile):  # asked for by the digest of its input
        return True
    header = layout_of(step.output).header
    with cache.object_path(file.digest).open("rb") as opened:
        return opened.read(len(header)) == header
