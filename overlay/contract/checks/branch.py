"""Whether the linear branch of a VDN stage is one that runtimes load: its config, and its tensors against the base."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from overlay.contract.checks.base_files import config_of, read_base
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, error_facts, is_broken, said
from overlay.errors import NotHere, OverlayError
from overlay.formats.vdn import linear_branch_shapes, read_linear_branch
from overlay.formats.wording import counted, named, shown
from overlay.planning.vdn_h3 import ROPE_TENSOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.contract.checks.base_files import BaseFiles
    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.formats.header import Header

__all__ = ["check_branch"]

_BLOCK = re.compile(r"transformer_blocks\.([0-9]+)\.")
_SIZES = ("hidden_size", "num_attention_heads", "attention_head_dim")


def check_branch(subject: Subject) -> Iterator[Finding]:
    """Hold the linear branch against the format and the base. Nothing where a file of it is absent: others say that."""
    if subject.branch is None:
        return
    yield from _config(subject, f"{subject.branch.rpartition('/')[0]}/config.json")
    try:
        header = subject.source.header(subject.branch)
    except OverlayError as error:
        yield from _unreadable(subject, error)
        return
    base = read_base(subject)
    if base is not None:
        yield from _tensors(subject, subject.branch, header, base)


def _config(subject: Subject, path: str) -> Iterator[Finding]:
    try:
        read_linear_branch(subject.source, path)
    except OverlayError as error:
        yield from _unreadable(subject, error)


def _tensors(subject: Subject, path: str, header: Header, base: BaseFiles) -> Iterator[Finding]:
    config = config_of(base)
    sizes = [size for key in _SIZES if type(size := config.get(key)) is int and size > 0]
    shapes = linear_branch_shapes(*sizes) if len(sizes) == len(_SIZES) else None
    # The names are the same for any sizes.
    names = shapes or linear_branch_shapes(1, 1, 1)
    blocks = {match[1] for name in base.checkpoint.weight_map if (match := _BLOCK.match(name))}
    known = {f"transformer_blocks.{block}.attn.{name}": name for block in blocks for name in names}
    where = subject.source.where(path)

    collide = sorted(header.tensors.keys() & {*base.checkpoint.weight_map, ROPE_TENSOR})
    if collide:
        yield _found(
            "branch-keys-collide",
            subject,
            f"{where}: {counted(len(collide), 'tensor')} by a name that the base, or what is made for it, has too: "
            f"{named(collide)}",
            tensors=collide[:MOST_DATA],
            count=len(collide),
        )
    unknown = sorted(header.tensors.keys() - known.keys() - set(collide))
    missing = sorted(known.keys() - header.tensors.keys())
    if unknown or missing:
        problems = [f"{counted(len(unknown), 'tensor')} that no runtime knows ({named(unknown)})"] if unknown else []
        problems += [f"no {named(missing)}"] if missing else []
        yield _found(
            "branch-keys-unknown",
            subject,
            f"{where}: has {' and '.join(problems)}; expected {len(names)} tensors for each of the base's "
            f"{counted(len(blocks), 'block')}, and there are {len(header.tensors)}",
            unknown=unknown[:MOST_DATA],
            missing=missing[:MOST_DATA],
            num_unknown=len(unknown),
            num_missing=len(missing),
        )
    if shapes is not None:
        yield from _shapes(subject, where, header, {key: shapes[name] for key, name in known.items()})


def _shapes(subject: Subject, where: str, header: Header, expected: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    wrong = sorted(name for name, info in header.tensors.items() if info.shape != expected.get(name, info.shape))
    if wrong:
        first = wrong[0]
        others = f"; so it is for {len(wrong)} tensors, also for {named(wrong[1:])}" if len(wrong) > 1 else ""
        yield _found(
            "branch-broken",
            subject,
            f"{where}: {shown(first)} has shape {list(header.tensors[first].shape)}; by the base's config.json "
            f"expected {list(expected[first])}{others}",
            tensors=wrong[:MOST_DATA],
            count=len(wrong),
        )


def _unreadable(subject: Subject, error: OverlayError) -> Iterator[Finding]:
    if not is_broken(error):
        raise error
    if not isinstance(error, NotHere):
        place = subject.entry.source.place
        yield found("branch-broken", subject.entry, said(error), place=place, fix=error.hint, error=error_facts(error))


def _found(code: str, subject: Subject, message: str, **data: Any) -> Finding:
    entry = subject.entry
    return found(code, entry, message, place=entry.source.place, fix=f"overlay bump {entry.model}", **data)
