"""What the cache holds for an output, by its two action keys; entries are believed only as far as they can be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.fingerprint import parse_digest
from overlay.formats.layout import canonical_layout
from overlay.materialization.record import RecordedFile, RecordedTensor, carried_tensors
from overlay.planning.actions import action_of, factor_action_of, factors_of
from overlay.planning.outputs import SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.cache import Cache
    from overlay.cache.tensors import TensorDigests
    from overlay.formats.layout import Layout
    from overlay.hub import Repo
    from overlay.planning.outputs import CarriedFile, Input, OutputFile, Range

__all__ = [
    "SAME_FACTORS",
    "SAME_INPUTS",
    "Found",
    "Lookup",
    "carried_file",
    "layout_of",
    "remember",
    "written_file",
]

SAME_INPUTS = "same inputs"
SAME_FACTORS = "same base and factors"
_ANOTHER_FILE = "is of another file than its key"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one output.

    Attributes:
        action: Key of its inputs; None where there is no cache, or nothing to remember.
        factor_action: Key of its factors; None where nothing is fused, or the adapters' tensors are not known.
        entry: What the cache holds, if it does.
        why: In words, why that is this output.
        unlearned: Adapters whose tensors are to be known before it can be told whether the cache holds it.
    """

    action: str | None = None
    factor_action: str | None = None
    entry: RecordedFile | None = None
    why: str = ""
    unlearned: tuple[Input, ...] = ()


class Lookup:
    """Looks outputs up.

    Args:
        rule: The plan's.
        tensors: Digests of the adapters' tensors, as far as they are known.
    """

    def __init__(self, cache: Cache, rule: str, tensors: TensorDigests) -> None:
        self._cache = cache
        self._rule = rule
        self._tensors = tensors

    def written(self, output: SafetensorsFile, layout: Layout) -> Found:
        """Look up a file that is written here."""
        action = action_of(output, self._rule)
        if (held := self._find(output, layout, action)) is not None:
            return Found(action, None, held[0], SAME_INPUTS)
        known, unlearned = self._factors(output)
        factor_action = factor_action_of(output, self._rule, known) if known and not unlearned else None
        if (held := self._find(output, layout, factor_action)) is not None:
            return Found(action, factor_action, held[0], _why(output, held[1]))
        return Found(action, factor_action, unlearned=unlearned)

    def carried(self, output: CarriedFile, repo: Repo) -> Found:
        """Look up a file that is taken over from ``repo``."""
        source, action = output.input, action_of(output, self._rule)
        if source.digest.startswith("sha256:"):
            digest = source.digest if self._cache.has_object(source.digest, source.size) else None
        else:
            digest = self._carried_before(action, source)
        if digest is None:
            return Found(action)
        return Found(action, None, carried_file(output, repo, digest), SAME_INPUTS)

    def _find(
        self, output: SafetensorsFile, layout: Layout, key: str | None
    ) -> tuple[RecordedFile, Mapping[str, Any]] | None:
        held = self._cache.find_action(key) if key else None
        if key is None or held is None:
            return None
        entry = written_file(output.path, layout, held)
        if entry is None:
            self._cache.drop_action(key, _ANOTHER_FILE)
            return None
        return entry, held

    def _factors(self, output: SafetensorsFile) -> tuple[dict[Range, str], tuple[Input, ...]]:
        """Digests of an output's factors, as far as they are known, and the adapters of the others."""
        factors = factors_of(output)
        if not all(factor.input.digest.startswith("sha256:") for factor in factors):
            return {}, ()  # what the Hub names by a git blob is small, and not worth a second look
        known: dict[Range, str] = {}
        for factor in factors:
            digest = self._tensors.of(factor.input.digest).get((factor.offset, factor.nbytes))
            if digest is not None:
                known[factor] = digest
        return known, tuple(dict.fromkeys(factor.input for factor in factors if factor not in known))

    def _carried_before(self, action: str | None, source: Input) -> str | None:
        held = self._cache.find_action(action) if action else None
        if action is None or held is None:
            return None
        if held["size"] != source.size:
            self._cache.drop_action(action, _ANOTHER_FILE)
            return None
        return str(held["digest"])


def remember(cache: Cache, output: OutputFile, found: Found, made: RecordedFile) -> None:
    """Let a file be found by its keys the next time."""
    entry = made.content_json()
    if found.factor_action and isinstance(output, SafetensorsFile):
        adapters = sorted({factor.input.digest for factor in factors_of(output)})
        cache.put_action(found.factor_action, {**entry, "adapters": adapters})
    if found.action:
        cache.put_action(found.action, entry)


def layout_of(output: SafetensorsFile) -> Layout:
    """How the tensors of a file that is written lie in it."""
    return canonical_layout([(t.name, t.dtype, t.shape) for t in output.tensors], output.metadata)


def carried_file(output: CarriedFile, repo: Repo, digest: str) -> RecordedFile:
    """A file that is taken over as it is, as the record has it; its header is read."""
    source = output.input
    tensors = carried_tensors(repo.header(source.path)) if source.path.endswith(".safetensors") else None
    return RecordedFile(output.path, digest, source.size, tensors)


def written_file(path: str, layout: Layout, entry: Mapping[str, Any]) -> RecordedFile | None:
    """An entry as a recorded file; None where it cannot be of a file of this layout."""
    expected = [(tensor.name, tensor.dtype, tensor.shape) for tensor in layout.tensors]
    try:
        tensors = tuple(
            RecordedTensor(item["name"], item["dtype"], tuple(item["shape"]), item["digest"])
            for item in entry["tensors"]
        )
        for digest in (entry["digest"], *(tensor.digest for tensor in tensors)):
            parse_digest(digest)
        found = [(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
        if entry["size"] != layout.file_size or found != expected:
            return None
        return RecordedFile(path, entry["digest"], entry["size"], tensors)
    except (KeyError, TypeError, BrokenInput):
        return None


def _why(output: SafetensorsFile, entry: Mapping[str, Any]) -> str:
    """Name the adapters that are not those which the object was made of, as far as the entry tells."""
    before = entry.get("adapters")
    adapters = dict.fromkeys(factor.input for factor in factors_of(output))
    changed = [item.path for item in adapters if isinstance(before, list) and item.digest not in before]
    return f"{SAME_FACTORS}: {', '.join(changed)} changed elsewhere" if changed else SAME_FACTORS
