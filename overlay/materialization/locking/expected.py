"""The expected output of a model: what a materialization holds that was verified, file by file and tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import CheckFailed
from overlay.fingerprint import file_digests, parse_digest
from overlay.formats.wording import counted
from overlay.materialization.record import read_record
from overlay.materialization.verify import verify
from overlay.registry.lock import Expected, ExpectedFile, recipe_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.materialization.record import Record, RecordedFile
    from overlay.materialization.request import Phase
    from overlay.registry import Entry

__all__ = ["expected_output"]


def expected_output(folder: Path, entry: Entry, phase: Phase) -> Expected:
    """What a materialization of an entry holds.

    Raises:
        CheckFailed: It is not what its record says, or was not built of exactly these pins by this recipe.
        OverlayError: As ``verify``.
    """
    verified = verify(folder, "full", phase=phase, remember=False)
    if not verified.ok:
        first = verified.problems[0]
        raise CheckFailed(
            f"{folder}: not what its record says: {counted(len(verified.problems), 'problem')}, first "
            f"{first.path}: {first.what}",
            code="build-not-sound",
            hint=f"overlay verify {folder}",
            where=str(folder),
        )
    record = read_record(verified.path)
    differences = ["it has no record"] if record is None else list(_differences(record, entry))
    if record is None or record.rule is None or record.writer_version is None or differences:
        raise CheckFailed(
            f"{folder}: was not built from {entry.model} as the registry has it: "
            f"{'; '.join(differences) or 'its record does not say how'}",
            code="build-of-other-pins",
            hint=f"build it with these pins first: overlay prewarm {entry.model}",
            where=str(folder),
            differences=differences,
        )
    unread = [item for item in record.outputs if item.algorithm != "sha256"]
    with phase("sha256", sum(item.size for item in unread)) as update:
        files = {item.path: _expected_file(verified.path / item.path, item, update) for item in record.outputs}
    return Expected(rule=record.rule, writer_version=record.writer_version, files=files)


def _differences(record: Record, entry: Entry) -> Iterator[str]:
    if record.model != entry.model:
        yield f"it is a build of {record.model}"
    built = {repo.repo: repo for repo in record.repos}
    components = {need.pin.repo: need.components for need in entry.needs}
    for pin in entry.pins:
        repo = built.pop(pin.repo, None)
        if repo is None:
            yield f"{pin.repo} took no part"
        elif repo.revision != pin.revision:
            yield f"{pin.repo} was at {repo.revision[:12]}, pinned is {pin}"
        elif repo.components != components.get(pin.repo, ()):
            yield f"{pin.repo} gave the components {', '.join(repo.components) or 'none'}"
    yield from (f"{repo} took part" for repo in built)
    if dict(record.recipe) != recipe_json(entry):
        yield f"its recipe was {' '.join(str(value) for value in record.recipe.values()) or 'none'}"


def _expected_file(path: Path, item: RecordedFile, update: Callable[[int], None]) -> ExpectedFile:
    digest = item.digest if item.algorithm == "sha256" else file_digests(path, update).sha256
    tensors = {tensor.name: tensor.digest for tensor in item.tensors or () if tensor.digest is not None}
    return ExpectedFile(size=item.size, digest=item.digest, sha256=parse_digest(digest)[1], tensors=tensors or None)
