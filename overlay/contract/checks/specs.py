"""Adapters that are described twice: under both names of the file, and in a stage's ``model_spec.json``."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.contract.finding import found
from overlay.contract.reading import is_broken, pin_of, said, unless_broken
from overlay.errors import OverlayError
from overlay.formats.adapters import check_model_spec
from overlay.formats.adapters.find import SPEC_NAMES, parse_description
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.formats.adapters.find import Description
    from overlay.hub import Repo

__all__ = ["check_specs"]


@dataclass(frozen=True, slots=True)
class _Described:
    name: str
    spec: str | None


def check_specs(subject: Subject) -> Iterator[Finding]:
    """``specs-differ``: an adapter is described twice, and not the same. One that cannot be read is not judged here."""
    yield from _twins(subject)
    yield from _model_spec(subject)


def _twins(subject: Subject) -> Iterator[Finding]:
    for adapter in subject.adapters:
        repo, folder = adapter.repo, _folder(adapter.repo, adapter.path)
        names = [posixpath.join(folder, name) for name in SPEC_NAMES]
        if not set(names) <= {*repo.paths()}:
            continue
        descriptions = [_description(repo, name) for name in names]
        if None not in descriptions and descriptions[0] != descriptions[1]:
            pin = pin_of(subject.entry, repo)
            yield found(
                "specs-differ",
                subject.entry,
                f"{shown(folder) or 'the root'} of {pin} has {' and '.join(SPEC_NAMES)}, and they do not say the same;"
                f" readers prefer {SPEC_NAMES[0]}, older ones know only {SPEC_NAMES[1]}",
                place=pin.place,
                fix=f"overlay bump {subject.entry.model}",
                repo=repo.repo,
                files=names,
            )


def _model_spec(subject: Subject) -> Iterator[Finding]:
    recipe = subject.entry.recipe
    if recipe.name != "vdn-h3" or not subject.adapters:
        return
    stage, source = recipe.options["stage"], subject.source
    described = [_Described(str(one.name), _readable_spec(source, one.path)) for one in subject.adapters]
    try:
        check_model_spec(source, stage, described)
    except OverlayError as error:
        if not is_broken(error):
            raise
        yield found(
            "specs-differ",
            subject.entry,
            said(error),
            place=subject.entry.source.place,
            fix=f"overlay bump {subject.entry.model}",
            repo=source.repo,
            files=[f"{stage}/model_spec.json"],
        )


def _folder(repo: Repo, path: str) -> str:
    return posixpath.dirname(path) if path in repo.paths() else path


def _readable_spec(repo: Repo, folder: str) -> str | None:
    """The description that the reader takes, if it can be read; that it cannot is said elsewhere."""
    names = [path for path in (f"{folder}/{name}" for name in SPEC_NAMES) if path in repo.paths()]
    return names[0] if names and _description(repo, names[0]) is not None else None


def _description(repo: Repo, path: str) -> Description | None:
    where = repo.where(path)
    return unless_broken(lambda: parse_description(parse_object(repo.read_bytes(path), where), where))
