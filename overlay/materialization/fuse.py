"""The fuse alone: a folder of safetensors plus adapters, to a new folder. No registry, no cache."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.cache import LinkMode, cannot_write, free_room
from overlay.cache.disk import fsync
from overlay.cache.layout import CacheRoot
from overlay.cache.links import link_file, ways
from overlay.errors import CannotWrite, InvalidUsage, NotHere, OverlayError
from overlay.fingerprint import DigestMemo, file_digest
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder
from overlay.formats.header import read_header
from overlay.formats.wording import format_bytes
from overlay.materialization.record import RECORD_NAME, identity_of, record_bytes, versions
from overlay.materialization.request import existing_folder, silent
from overlay.materialization.survey import Counters, read_bytes_of
from overlay.planning.fuse import adapter_uses, base_tensors, fuse_checkpoint, read_adapters, refuse_fused_twice
from overlay.planning.outputs import CarriedFile, Input, SafetensorsFile
from overlay.planning.plan import InputBook, Plan, finish
from overlay.planning.recipes import check_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from overlay.formats.checkpoint import Checkpoint
    from overlay.materialization.request import Phase
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
    """

    path: Path
    adapters: tuple[AdapterUse, ...]
    left_out: tuple[str, ...]
    counters: Counters
    room: int
    seconds: float


def fuse(
    base: Path,
    adapters: Sequence[Path],
    out: Path,
    *,
    rule: str = "fp32-once",
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
        out: The new folder; must not exist. Missing folders above it are made.
        link: How shards without a target come over; ``auto`` reflinks where it can and else copies.
        dry_run: Plan and check everything, write nothing.

    Raises:
        InvalidUsage: ``out`` exists, no adapter is given, or there is no such rule.
        NotHere: The base or an adapter is not there.
        BrokenInput: An input is not what it must be.
        CannotWrite: No room, no permission, or a filesystem that cannot.
    """
    started = time.monotonic()
    out, adapters = Path(out), [Path(adapter) for adapter in adapters]
    if os.path.lexists(out):
        raise InvalidUsage(
            f"{out}: exists; a fuse never writes into what is there",
            code="out-exists",
            hint="name a folder that does not exist yet, or move this one away",
            path=str(out),
        )
    if not adapters:
        raise InvalidUsage("no adapter was given", code="no-adapter", hint="name one or more with --adapter")
    check_rule(rule)
    base = existing_folder(base).absolute()
    memo = DigestMemo(None)
    book = InputBook(Folder(base), f"base:{base.resolve().name}", "local", lambda _path: "")
    checkpoint = read_checkpoint(book.files)
    books = [_adapter_book(number, path, memo) for number, path in enumerate(adapters, 1)]
    sources = read_adapters([(b, path, None) for b, path in books], base_tensors(checkpoint))
    before = refuse_fused_twice(Folder(base.resolve().parent), base.resolve().name, sources)
    along, left_out = _others(book, checkpoint)
    outputs = [*fuse_checkpoint(book, checkpoint, sources, ""), *(CarriedFile(p, book(p)) for p in along)]
    plan = Plan(base.resolve().name, rule, out.name, finish(outputs, str(base)), adapter_uses(sources), before)
    roots = {
        f"base:{base.resolve().name}": base,
        **{b.repo: _root(path) for (b, _), path in zip(books, adapters, strict=True)},
    }

    def path_of(source: Input) -> Path:
        return roots[source.repo] / source.path

    job = _Job(plan, out.absolute(), path_of, rule, jobs, memory, ways(link, shared_store=False), phase)
    room = sum(job.size(output) for output in plan.outputs)
    if dry_run:
        return Fusion(out.absolute(), plan.adapters, left_out, job.counters({}), room, time.monotonic() - started)
    with _new_folder(job.out, room) as staged:
        counters = job.run(staged, device, started)
    return Fusion(job.out, plan.adapters, left_out, counters, room, time.monotonic() - started)


def _root(adapter: Path) -> Path:
    return adapter.absolute() if adapter.is_dir() else adapter.absolute().parent


def _adapter_book(number: int, path: Path, memo: DigestMemo) -> tuple[InputBook, str]:
    if not path.exists():
        raise NotHere(
            f"{path}: no such adapter", code="no-such-adapter", hint="name a folder or a file", path=str(path)
        )
    root = _root(path)
    files, name = (Folder(root), "") if path.is_dir() else (_Beside(root), path.name)
    label = f"adapter{number}:{path.resolve().name}"
    return InputBook(files, label, "local", lambda inside: memo.sha256(root / inside)), name


class _Beside(Folder):
    """The files that lie beside a file which somebody names; what is in folders there is nobody's business."""

    def paths(self) -> Sequence[str]:
        """Files of the folder itself."""
        with os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if not entry.is_dir())


def _others(book: InputBook, checkpoint: Checkpoint) -> tuple[list[str], tuple[str, ...]]:
    rest = [path for path in book.files.paths() if path not in checkpoint.shards and path != RECORD_NAME]
    along = [path for path in rest if "/" not in path and _TAKEN_ALONG.fullmatch(path)]
    return along, tuple(path for path in rest if path not in along)


@dataclass(frozen=True, slots=True)
class _Job:
    plan: Plan
    out: Path
    path_of: Callable[[Input], Path]
    rule: str
    jobs: int | None
    memory: int
    allowed: tuple[Any, ...]
    phase: Phase

    def size(self, output: Any) -> int:
        if isinstance(output, CarriedFile):
            return output.input.size
        return sum(piece.nbytes for tensor in output.tensors for piece in tensor.pieces)

    def run(self, staged: Path, device: str, started: float) -> Counters:
        from overlay.fusion.build import build_safetensors, default_jobs
        from overlay.fusion.engine import Engine

        engine = Engine.start(device)
        jobs = self.jobs or default_jobs(engine)
        entries: list[dict[str, Any]] = []
        links: dict[str, str] = {}
        kernels: dict[str, int] = {}
        bases = {i.path: i for i in self.plan.inputs() if not i.digest}
        total = sum(self.size(output) for output in self.plan.outputs)
        # The base's digests are taken beside the build, while its bytes are in the page cache.
        with ExitStack() as stack:
            hashing = ThreadPoolExecutor(1)
            stack.callback(hashing.shutdown, cancel_futures=True)
            update = stack.enter_context(self.phase("fuse", total))
            digests = {
                path: hashing.submit(file_digest, self.path_of(source), "xxh3_128") for path, source in bases.items()
            }
            for output in self.plan.outputs:
                target = staged / output.path
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(output, SafetensorsFile):
                    built = build_safetensors(
                        output,
                        target,
                        open_input=self.path_of,
                        engine=engine,
                        rule=self.rule,
                        jobs=jobs,
                        memory=self.memory,
                        progress=update,
                    )
                    kernels.update({name: kernels.get(name, 0) + count for name, count in built.kernels.items()})
                    entries.append(
                        {
                            "path": output.path,
                            "digest": built.digest,
                            "size": built.size,
                            "tensors": [asdict(t) for t in built.tensors],
                        }
                    )
                elif isinstance(output, CarriedFile):
                    links[output.path] = link_file(self.path_of(output.input).resolve(), target, self.allowed)
                    fsync(target)
                    entries.append(
                        {"path": output.path, "digest": digests[output.input.path].result(), "size": output.input.size}
                    )
                    update(output.input.size)
            found = {(source.repo, path): digests[path].result() for path, source in bases.items()}
        identity = identity_of(self.plan, None, {"name": "fuse"}, found)
        counters = self.counters(links)
        run = {
            "counters": asdict(counters),
            "seconds": round(time.monotonic() - started, 3),
            "kernels": kernels,
            "engine": engine.describe(),
            "links": links,
            "versions": versions(),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        (staged / RECORD_NAME).write_bytes(record_bytes({**identity, "outputs": entries, "run": run}))
        fsync(staged / RECORD_NAME)
        return counters

    def counters(self, links: Mapping[str, str]) -> Counters:
        read = written = linked = 0
        for output in self.plan.outputs:
            if isinstance(output, SafetensorsFile):
                read += read_bytes_of(output)
                written += self.size(output)
            elif isinstance(output, CarriedFile) and output.path.endswith(".safetensors"):
                source = self.path_of(output.input)
                payload = output.input.size - read_header(source).data_start
                if links.get(output.path, self.allowed[-1]) == "copy":
                    read, written = read + payload, written + payload
                else:
                    linked += payload
        return Counters(read=read, written=written, linked=linked)


@contextmanager
def _new_folder(out: Path, room: int) -> Iterator[Path]:
    """A hidden folder beside ``out`` that becomes ``out`` by one rename at the end, or is removed."""
    if (free := free_room(out.parent)) < room:
        raise CannotWrite(
            f"{out.parent}: {format_bytes(room)} needed, {format_bytes(free)} free",
            code="no-room",
            hint="free some room there, or name an --out on another disk",
            needed=room,
            free=free,
        )
    staged = out.parent / f".{out.name}.overlay-{secrets.token_hex(8)}"
    try:
        with _parents_of(out):
            try:
                staged.mkdir()
                yield staged
                fsync(staged)
                _rename_new(staged, out)
                fsync(out.parent)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        if isinstance(error, OverlayError):
            raise
        raise cannot_write(error, CacheRoot(out.parent, "--out"), f"write {out.name}") from error


@contextmanager
def _parents_of(out: Path) -> Iterator[None]:
    """The folders above ``out``; those that had to be made are removed again when it fails."""
    made = [folder for folder in out.parents if not os.path.lexists(folder)]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # not made yet, or somebody else put something there
                folder.rmdir()
        raise


def _rename_new(staged: Path, out: Path) -> None:
    # rename(2) would replace an empty folder that somebody made meanwhile; that is the one thing that it may replace.
    if os.path.lexists(out) and not out.is_dir():
        raise InvalidUsage(f"{out}: somebody made it meanwhile", code="out-exists", path=str(out))
    staged.rename(out)
