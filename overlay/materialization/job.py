"""One run: what its parts share, and the making of files into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.materialization.build import Builder
from overlay.materialization.inputs import Checks, fetch
from overlay.materialization.links import Fallback
from overlay.materialization.sinks import CacheSink

if TYPE_CHECKING:
    from overlay.cache import Cache
    from overlay.fingerprint import DigestMemo
    from overlay.fusion.engine import Engine
    from overlay.hub import Inventory
    from overlay.materialization.build import Made
    from overlay.materialization.request import Options, Phase
    from overlay.materialization.survey import Work

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run on its repos and its cache."""

    inventory: Inventory
    cache: Cache
    memo: DigestMemo
    options: Options
    phase: Phase

    def make(self, work: Work, engine: Engine | None, label: str) -> Made:
        """Fetch the inputs of the work, check them and make its files; each is an object when it is finished.

        Raises:
            OverlayError: As ``materialize``.
        """
        repos, options = self.inventory.repos, self.options
        fallback = Fallback(options.link, self.cache.root.path, work.room, self.cache.notes)
        inputs = fetch(work, repos, self.phase)
        with Checks(work, inputs, repos, self.memo) as checks:
            sink = CacheSink(self.cache, inputs, repos, checks, fallback)
            builder = Builder(inputs.path, sink, engine, options.rule, options.jobs, options.memory)
            try:
                made = builder.run(work.steps, label, self.phase)
            finally:
                written = sink.forget_written()
            for error in written:
                raise error
            return made
