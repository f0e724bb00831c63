"""Whether the base is the one that the adapters were trained on, as far as names, headers and listings tell."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from overlay.contract.checks.base_files import compare, config_of, listed_digest, read_base, read_document
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, is_broken, pin_of, unless_broken
from overlay.errors import NotHere, OverlayError, Refused
from overlay.formats.adapters.find import find_adapter
from overlay.formats.adapters.keys import read_keys
from overlay.formats.adapters.match import FLOATS, VDN_RENAME, Base
from overlay.formats.adapters.peft import PeftConfig
from overlay.formats.wording import counted, named, shown
from overlay.planning.fuse import base_tensors
from overlay.registry import COMMIT, Pin, repo_id_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from overlay.contract.checks.base_files import BaseFiles
    from overlay.contract.finding import Finding
    from overlay.contract.subject import AdapterPlace, Subject
    from overlay.formats.adapters.find import Found
    from overlay.hub import Repo

__all__ = ["check_bases"]

_QUANTISATION = ("quantization_config", "compression_config")


def check_bases(subject: Subject, open_other: Callable[[Pin], Repo] | None = None) -> Iterator[Finding]:
    """Whether the base is plain, and the one that the adapters name or were trained on before the change.

    Weights are never read: where no listing gives the digest of a shard, nothing is said of its bytes.

    Args:
        open_other: Opens a repo that an adapter names and the entry does not pin; without it, its name alone counts.
    """
    base = read_base(subject)
    if base is None:
        return
    yield from _quantised(subject, base)
    yield from _specified(subject, base)
    for adapter in subject.adapters:
        yield from _named(subject, base, adapter, open_other)
    yield from _changed(subject, base)


def _quantised(subject: Subject, base: BaseFiles) -> Iterator[Finding]:
    modules = Base(base_tensors(base.checkpoint), VDN_RENAME)
    reasons = dict(reason for adapter in subject.adapters for reason in _stored_otherwise(adapter, modules))
    field = next((name for name in _QUANTISATION if config_of(base).get(name)), None)
    if not reasons and field is None:
        return
    said = [f"config.json has {field}"] if field else []
    if reasons:
        name, why = next(iter(reasons.items()))
        said.append(f"{counted(len(reasons), 'target')} of the adapters, {shown(name)} first, which {shown(why)}")
    yield found(
        "base-quantised",
        subject.entry,
        f"{base.where}: the base is quantised or scaled: {'; '.join(said)}; adapters can be folded into plain "
        f"{', '.join(FLOATS)} weights only",
        place=pin_of(subject.entry, base.repo).place,
        fix="pin the unquantised base; quantise what was fused",
        config=field,
        modules=list(reasons)[:MOST_DATA],
        count=len(reasons),
    )


def _stored_otherwise(adapter: AdapterPlace, base: Base) -> Iterator[tuple[str, str]]:
    """The targets of an adapter whose stored numbers are not their weight, and what shows it."""
    try:
        weights = find_adapter(adapter.repo, adapter.path).weights
        where = adapter.repo.where(weights)
        halves = read_keys(adapter.repo.header(weights), where, base.modules)
        landings = [(half.module, base.find(half.module, where)) for half in halves]
    except OverlayError as error:
        if not is_broken(error):
            raise
        return
    for module, landing in landings:
        if landing is not None:
            if why := base.quantised(landing.module):
                yield landing.module, why
        elif packed := base.packed(module):
            yield module, f"is stored as {packed}"


def _specified(subject: Subject, base: BaseFiles) -> Iterator[Finding]:
    """What the ``model_spec.json`` of a stage says of the base that it was trained on.

    Its ``source`` is a folder of whoever trained it, and its ``config_hash`` is of ``resolved_config``, which binds
    nothing where that is only a note (a key that begins with ``_``), as in the published one.
    """
    config = config_of(base)
    stages = {adapter.path: adapter.repo for adapter in subject.adapters}
    specs = {f"{_stage(path)}/model_spec.json".lstrip("/"): repo for path, repo in stages.items()}
    for path, repo in specs.items():
        said = read_document(repo, path).get("base")
        problems = _contradictions(said, config) if isinstance(said, dict) and config else []
        if problems:
            yield found(
                "base-not-trained-on",
                subject.entry,
                f"{repo.where(path)}: describes another base than {base.where}: {named(problems)}",
                place=pin_of(subject.entry, base.repo).place,
                fix=f"overlay bump {subject.entry.model}",
                spec=path,
                problems=problems[:MOST_DATA],
            )


def _stage(adapter_path: str) -> str:
    """``stage-x`` for ``stage-x/adapters/default``, and for a file in there; empty for the root."""
    path = PurePosixPath(adapter_path)
    folder = path.parent if path.suffix == ".safetensors" else path
    stage = str(folder.parent.parent)
    return "" if stage == "." else stage


def _contradictions(said: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    problems = []
    wanted, actual = said.get("class_name"), config.get("_class_name")
    if isinstance(wanted, str) and isinstance(actual, str) and wanted != actual:
        problems.append(f"class_name is {wanted[:80]}, the base's is {actual[:80]}")
    resolved = said.get("resolved_config")
    if not isinstance(resolved, dict) or all(key.startswith("_") for key in resolved):
        return problems
    compact = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
    if said.get("config_hash") not in (None, hashlib.sha256(compact.encode()).hexdigest()):
        problems.append("config_hash is not that of its resolved_config")
    problems += [
        f"resolved_config has {key} {json.dumps(value)[:80]}, the base {json.dumps(config[key])[:80]}"
        for key, value in sorted(resolved.items())
        if not key.startswith("_") and key in config and config[key] != value
    ]
    return problems


def _named(
    subject: Subject, base: BaseFiles, adapter: AdapterPlace, open_other: Callable[[Pin], Repo] | None
) -> Iterator[Finding]:
    """The base that a PEFT adapter names: another repo, or another commit of this one."""
    files = _files_of(adapter)
    pin = _base_pin(files, base) if files is not None else None
    if files is None or pin is None:
        return
    other = _opened(pin, open_other)
    likeness = compare(base, other, base.folder) if other is not None else "unlike"
    if likeness == "same":
        return
    pinned = f"{base.repo.repo}@{base.repo.revision[:12]}"
    told = str(pin) if pin.revision else pin.repo
    code = "base-bytes-differ" if likeness == "other bytes" else "base-not-trained-on"
    more = "; its tensors have the same names and shapes, and other bytes" if likeness == "other bytes" else ""
    yield found(
        code,
        subject.entry,
        f"{adapter.repo.where(files.spec or files.weights)}: was trained on {told}, as it says; the base is "
        f"{pinned}{more}",
        place=pin_of(subject.entry, base.repo).place,
        fix=f"pin the base that it names, {told}, or an adapter for this one",
        named={"repo": pin.repo, "revision": pin.revision},
        pinned={"repo": base.repo.repo, "revision": base.repo.revision},
        compared=other is not None,
    )


def _base_pin(files: Found, base: BaseFiles) -> Pin | None:
    """The base that an adapter names, where that is a repo of the Hub and is not what is pinned."""
    if not isinstance(files.description, PeftConfig):
        return None
    name, revision = files.description.base_model_name_or_path, files.description.revision
    if not isinstance(name, str) or repo_id_problem(name):  # a folder of whoever trained it tells nothing
        return None
    commit = revision if isinstance(revision, str) and COMMIT.fullmatch(revision) else None
    if name.lower() == base.repo.repo.lower() and (
        commit in (None, base.repo.revision) or not COMMIT.fullmatch(base.repo.revision)
    ):
        return None
    return Pin(name, commit, None if commit else "the adapter names no commit")


def _opened(pin: Pin, open_other: Callable[[Pin], Repo] | None) -> Repo | None:
    if open_other is None or pin.revision is None:
        return None
    try:
        return open_other(pin)
    except (NotHere, Refused):  # gone, gated or not on this host: its name is all that there is to compare
        return None


def _changed(subject: Subject, base: BaseFiles) -> Iterator[Finding]:
    """The base before the change, where an adapter that was trained on it is still there."""
    before = read_base(subject.before) if subject.before is not None else None
    if before is None or subject.before is None:
        return
    if compare(base, before.repo, before.folder, before.checkpoint) != "other bytes":
        return
    kept = _adapter_digests(subject) & _adapter_digests(subject.before)
    if not kept:  # base and adapters changed together
        return
    shards = [path for path in base.checkpoint.shards if base.digest(path) != before.digest(path)]
    yield found(
        "base-bytes-differ",
        subject.entry,
        f"{base.where}: the bytes of {len(shards)} of {counted(len(base.checkpoint.shards), 'shard')} "
        f"({named(shards)}) are not those of {before.where}, with the same tensors; the "
        f"adapters are still those for the base before",
        place=pin_of(subject.entry, base.repo).place,
        fix="ask whoever publishes the base what changed; or keep its pin",
        shards=shards[:MOST_DATA],
        before=before.repo.revision,
        adapters=sorted(kept),
    )


def _adapter_digests(subject: Subject) -> set[str]:
    digests = set()
    for adapter in subject.adapters:
        files = _files_of(adapter)
        if files is not None and (digest := listed_digest(adapter.repo, files.weights)):
            digests.add(digest)
    return digests


def _files_of(adapter: AdapterPlace) -> Found | None:
    """The files of an adapter; None where they cannot be read: other checks say why."""
    return unless_broken(find_adapter, adapter.repo, adapter.path)
