"""The fuse alone: a folder of safetensors plus adapters, to a new folder. No registry, no cache."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.cache.disk import fsync
from overlay.cache.layout import CacheRoot
from overlay.errors import InvalidUsage, NotHere, OverlayError
from overlay.fingerprint import DigestMemo, file_digest, part_digest, safetensors_digest
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder
from overlay.materialization.build import Builder, require_device, start_engine
from overlay.materialization.inputs import file_identity, input_changed
from overlay.materialization.links import Fallback, Links, copies
from overlay.materialization.out_folder import new_folder, require_new
from overlay.materialization.record import RECORD_NAME, record_bytes
from overlay.materialization.request import existing_folder, silent
from overlay.materialization.sealing import identity_of, run_report
from overlay.materialization.sinks import FolderSink
from overlay.materialization.survey import Counters, Work, as_linked, built_step, carried_step, counters_of
from overlay.planning.fuse import adapter_uses, base_tensors, fuse_checkpoint, read_adapters, refuse_fused_twice
from overlay.planning.outputs import CarriedFile, SafetensorsFile
from overlay.planning.plan import InputBook, Plan, finish
from overlay.planning.rules import DEFAULT_RULE, check_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from overlay.cache import LinkMode
    from overlay.formats.checkpoint import Checkpoint
    from overlay.fusion.build import BuiltFile
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step
    from overlay.planning.outputs import Input
    from overlay.planning.plan import AdapterUse

__all__ = ["Fusion", "fuse"]

_TAKEN_ALONG = re.compile(r".*\.(json|txt|md)|(LICEN[CS]E|NOTICE|COPYING|README)[^/]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Outcome of a fuse.

    Attributes:
        path: The new folder.
        adapters: What was folded in, in order.
        left_out: Files of the base that were not taken along.
        room: Bytes that the new folder needs on its filesystem.
        notes: Why files were copied, where nobody asked for that.
        seconds: From the call to its return.
        start_seconds: Of these, the import of torch and the start-up test of the device.
    """

    path: Path
    adapters: tuple[AdapterUse, ...]
    left_out: tuple[str, ...]
    counters: Counters
    room: int
    seconds: float
    start_seconds: float
    notes: tuple[str, ...] = ()


def fuse(
    base: Path,
    adapters: Sequence[Path],
    out: Path,
    *,
    rule: str = DEFAULT_RULE,
    device: str = "auto",
    jobs: int | None = None,
    memory: int = 2**30,
    link: LinkMode = "auto",
    dry_run: bool = False,
    phase: Phase = silent,
) -> Fusion:
    """Fold adapters into a base folder's safetensors, in the order given.

    The new folder holds the base's shards (fused, or carried where no target is in them), its JSON, text and licence
    files, and a record to verify it by. It appears at once, complete, or not at all.

    Args:
        base: Folder with one safetensors file, or shards with their index.
        adapters: Folders or safetensors files.
        out: The new folder; must not exist, nor lie in ``base``. Missing folders above it are made.
        link: How files that no adapter touches come over; ``auto`` reflinks where it can and else copies.
        dry_run: Plan and check everything, write nothing.

    Raises:
        InvalidUsage: ``out`` exists or lies in ``base``, no adapter is given, or there is no such rule.
        NotHere: The base or an adapter is not there.
        BrokenInput: An input is not what it must be, or was changed while this ran.
        CannotWrite: No room, no permission, or a filesystem that cannot, or cannot link as was asked.
    """
    started = time.monotonic()
    out, base = Path(out).absolute(), Path(base)
    require_new(out, base)
    if not adapters:
        raise InvalidUsage("no adapter was given", code="no-adapter", hint="name one or more with --adapter")
    check_rule(rule)
    sources = _Sources(existing_folder(base).absolute(), [Path(adapter) for adapter in adapters])
    plan, left_out = _plan(sources, rule, out.name)
    links = Links(CacheRoot(out.parent, "--out"), link)
    work = _work(plan, sources, links)
    start_seconds = 0.0
    copied = copies((step.size, step.why) for step in work.steps if step.how == "copy")
    notes = [f"copied {text}" for text in copied]
    if dry_run:
        require_device(device)
    else:
        with new_folder(out, work.room) as staged, sources.base_digests(plan) as digests:
            sink = FolderSink(staged, sources.locate, digests, Fallback(link, staged, work.room, notes))
            before = time.monotonic()
            engine = start_engine(work.steps, device)
            start_seconds = time.monotonic() - before
            made = Builder(sources.locate, sink, engine, rule, jobs, memory).run(work.steps, "fuse", phase)
            work = as_linked(work, made.links)
            found = {path: digest.result() for path, digest in digests.items()}
            found |= {path: sources.digest_in_hand(path, built) for path, built in made.built.items()}
            sources.require_unchanged(plan)
            of_base = {(sources.base.repo, path): digest for path, digest in found.items()}
            record = {
                **identity_of(plan, None, {"name": "fuse"}, of_base),
                "outputs": [made.files[output.path].to_json() for output in plan.outputs],
                "run": run_report(work, made, engine, time.monotonic() - started),
            }
            (staged / RECORD_NAME).write_bytes(record_bytes(record))
            fsync(staged / RECORD_NAME)
    seconds = time.monotonic() - started
    return Fusion(out, plan.adapters, left_out, work.counters, work.room, seconds, start_seconds, tuple(notes))


class _Sources:
    """The base and the adapters, as they were when the fuse began.

    Attributes:
        base: Its digests are taken during the build, while its bytes are in the page cache; the plan needs none.
        adapters: Book of each adapter's folder, and the path in it.
    """

    def __init__(self, base: Path, adapters: Sequence[Path]) -> None:
        memo = DigestMemo(None)
        self.folder = base
        self.base = InputBook(Folder(base), f"base:{base.resolve().name}", "local", lambda _path: "")
        self._roots = {self.base.repo: base}
        self.adapters = [self._adapter(number, path, memo) for number, path in enumerate(adapters, 1)]
        self._seen: dict[Path, tuple[int, ...]] = {}
        for book in (self.base, *(book for book, _ in self.adapters)):
            self._seen.update(_identities(self._roots[book.repo], book.files.paths()))

    def _adapter(self, number: int, path: Path, memo: DigestMemo) -> tuple[InputBook, str]:
        if not path.exists():
            raise NotHere(
                f"{path}: no such adapter", code="no-such-adapter", hint="name a folder or a file", path=str(path)
            )
        root, inside = (path.absolute(), "") if path.is_dir() else (path.absolute().parent, path.name)
        files = Folder(root) if path.is_dir() else _Beside(root)
        book = InputBook(
            files, f"adapter{number}:{path.resolve().name}", "local", lambda name: memo.sha256(root / name)
        )
        self._roots[book.repo] = root
        return book, inside

    def locate(self, source: Input) -> Path:
        """Where an input lies."""
        return self._roots[source.repo] / source.path

    @contextmanager
    def base_digests(self, plan: Plan) -> Iterator[Mapping[str, Future[str]]]:
        """Digests of the base's files that are carried, by path, being taken on a thread of its own."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="overlay-xxh3")
        try:
            yield {
                output.path: pool.submit(file_digest, self.locate(output.input), "xxh3_128")
                for output in plan.outputs
                if isinstance(output, CarriedFile)
            }
        finally:
            pool.shutdown(cancel_futures=True)

    def digest_in_hand(self, path: str, built: BuiltFile) -> str:
        """Digest of a base shard whose tensors a build has read; only its header is read here."""
        header = self.base.files.header(path)
        before = {tensor.name: tensor.source_digest or "" for tensor in built.tensors}
        start = part_digest(self.folder / path, (0, header.data_start))
        return safetensors_digest(start, [before[name] for name in header.tensors])

    def require_unchanged(self, plan: Plan) -> None:
        """Refuse to seal what was made while somebody wrote into an input.

        Raises:
            BrokenInput: Inode, size or time of one are others than at first.
        """
        for source in plan.inputs():
            path = self.locate(source)
            if _identities(path.parent, [path.name]).get(path) != self._seen.get(path):
                raise input_changed(str(path), "another file, size or time than at first", source.path)


def _identities(folder: Path, names: Sequence[str]) -> dict[Path, tuple[int, ...]]:
    found = {}
    for name in names:
        with suppress(OverlayError):  # whoever needs it, says so
            found[folder / name] = file_identity(folder / name)
    return found


class _Beside(Folder):
    """The files that lie beside a file which somebody names; what is in folders there is nobody's business."""

    def paths(self) -> Sequence[str]:
        """Files of the folder itself."""
        with os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if not entry.is_dir())


def _plan(sources: _Sources, rule: str, name: str) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and what of the base stays behind."""
    base, real = sources.base, sources.folder.resolve()
    checkpoint = read_checkpoint(base.files)
    adapters = read_adapters([(book, path, None) for book, path in sources.adapters], base_tensors(checkpoint))
    before = refuse_fused_twice(Folder(real.parent), real.name, adapters)
    along, left_out = _others(base, checkpoint)
    outputs = [*fuse_checkpoint(base, checkpoint, adapters, ""), *(CarriedFile(path, base(path)) for path in along)]
    made = finish(outputs, str(sources.folder))
    return Plan(real.name, rule, name, made, adapter_uses(adapters), before), left_out


def _others(book: InputBook, checkpoint: Checkpoint) -> tuple[list[str], tuple[str, ...]]:
    rest = [path for path in book.files.paths() if path not in checkpoint.shards and path != RECORD_NAME]
    along = [path for path in rest if "/" not in path and _TAKEN_ALONG.fullmatch(path)]
    return along, tuple(path for path in rest if path not in along)


def _work(plan: Plan, sources: _Sources, links: Links) -> Work:
    """What is to be done."""

    def step(output: SafetensorsFile | CarriedFile) -> Step:
        if isinstance(output, SafetensorsFile):
            return built_step(output)
        way = links.of_file(sources.locate(output.input).resolve(), output.input.size, shared_store=False)
        return carried_step(output, sources.base.files, way)

    steps = tuple(step(output) for output in plan.outputs if isinstance(output, SafetensorsFile | CarriedFile))
    links.require_possible()
    return Work(plan, steps, (), counters_of(steps), sum(step.room for step in steps))
