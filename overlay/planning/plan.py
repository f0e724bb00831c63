"""The plan: every output file of one materialization, known before any weight byte moves."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.files import safe_path
from overlay.formats.materialized import MARKER_NAME
from overlay.formats.tree_files import git_folder, is_hidden
from overlay.planning.outputs import AliasFile, CarriedFile, Fused, Input, OutputFile, Range, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from overlay.formats.files import Files
    from overlay.planning.scripted import Script

__all__ = ["AdapterUse", "InputBook", "Plan", "finish", "inputs_of"]


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """One adapter as it takes part in a fuse.

    Attributes:
        kind: Layout that it was read as: openvdn, peft, kohya or bare.
        spec: File that its ranks and scales come from; None where the weights alone say it.
        scales: Distinct float32 scales, ascending, with ``scale_origins`` saying how they came about.
        pattern_rule: Rule by which per-module patterns were matched.
    """

    name: str
    kind: str
    weights: Input
    spec: Input | None
    num_pairs: int
    scales: tuple[float, ...]
    scale_origins: tuple[str, ...]
    pattern_rule: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Output files in path order, and what the record says of how they come about.

    Attributes:
        location: Directory name under ``materialized_models`` where the consumer looks.
        fused_before: Digests of the adapters that the base holds already.
        reads: Small files whose content shaped the plan (specs, configs, manifests), beyond the inputs of outputs.
        notes: What a user should know, one sentence each.
        script: The overlay's own Python that is still to run: the outputs are laid over what it will leave.
        given: Files that are given to it, or were.
    """

    model: str
    rule: str
    location: str
    outputs: tuple[OutputFile, ...]
    adapters: tuple[AdapterUse, ...] = ()
    fused_before: tuple[str, ...] = ()
    reads: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()
    script: Script | None = None
    given: tuple[Input, ...] = ()

    def inputs(self) -> tuple[Input, ...]:
        """Every distinct input file, by repo and path."""
        found = {(i.repo, i.path): i for output in self.outputs for i in inputs_of(output)}
        specs = [use.spec for use in self.adapters if use.spec is not None]
        found.update({(i.repo, i.path): i for i in (*specs, *self.reads, *self.given)})
        return tuple(found[key] for key in sorted(found))


class InputBook:
    """Makes the :class:`Input` of a file once, so that a digest is asked for once.

    Args:
        files: The repo or folder.
        repo: Its name in the record.
        revision: 40-hex commit, or ``local``.
        digest: Gives a file's digest; ``lambda path: ""`` where no identity is needed.
    """

    def __init__(self, files: Files, repo: str, revision: str, digest: Callable[[str], str]) -> None:
        self.files = files
        self.repo = repo
        self.revision = revision
        self._digest = digest
        self._made: dict[str, Input] = {}

    def __call__(self, path: str) -> Input:
        """The input at a path of the repo."""
        if path not in self._made:
            size, digest = self.files.size(path), self._digest(path)
            self._made[path] = Input(self.repo, self.revision, path, size, digest)
        return self._made[path]


def inputs_of(output: OutputFile) -> Iterator[Input]:
    """The input files of one output, repeats included."""
    if isinstance(output, CarriedFile):
        yield output.input
    elif isinstance(output, SafetensorsFile):
        for tensor in output.tensors:
            for piece in tensor.pieces:
                if isinstance(piece, Range):
                    yield piece.input
                elif isinstance(piece, Fused):
                    yield piece.weight.input
                    for term in piece.terms:
                        yield from (term.a.input, term.b.input)


def finish(outputs: Iterable[OutputFile], where: str) -> tuple[OutputFile, ...]:
    """Sort outputs by path; refuse paths that escape, collide, or use one path as file and folder.

    Names that differ in the case of letters alone collide: trees are copied to filesystems that take them for one.
    Hidden paths are refused, too: whoever works in the tree would run what a ``.git`` or ``.envrc`` there says.

    Raises:
        BrokenInput: The inputs ask for two different files at one path, or for one that no tree may have.
    """
    by_path: dict[str, OutputFile] = {}
    for output in outputs:
        path = safe_path(output.path, where)
        if is_hidden(path) and path != MARKER_NAME:
            raise _unsafe(f"{where}: {path!r} would be hidden in the tree", path)
        if path in by_path:
            raise BrokenInput(f"{where}: two inputs claim the output {path}", code="output-collision", path=path)
        by_path[path] = output
    _require_apart(by_path, where)
    if (folder := git_folder(by_path)) is not None:
        raise _unsafe(f"{where}: {folder} would be a git repository in the tree", folder)
    for output in by_path.values():
        if isinstance(output, AliasFile) and output.of not in by_path:
            raise ValueError(f"{output.path} names {output.of}, which is no output")
    return tuple(by_path[path] for path in sorted(by_path))


def _require_apart(paths: Collection[str], where: str) -> None:
    """Refuse two paths of which some filesystem makes one, and one path as file and folder."""
    files: dict[str, str] = {}
    for path in paths:
        if (other := files.setdefault(_one_name(path), path)) != path:
            raise BrokenInput(
                f"{where}: {other} and {path} are one file where letters have no case",
                code="output-collision",
                hint="trees are copied to such filesystems, too: take one of them to another place",
                path=path,
            )
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent:
            if (file := files.get(_one_name(parent))) is not None:
                raise BrokenInput(
                    f"{where}: {file} would be both a file and a folder (of {path})",
                    code="output-collision",
                    path=path,
                )
            parent = parent.rpartition("/")[0]


def _one_name(path: str) -> str:
    """What is the same of all spellings that some filesystem takes for one name."""
    return unicodedata.normalize("NFC", path).casefold()


def _unsafe(problem: str, path: str) -> BrokenInput:
    return BrokenInput(
        f"{problem}, whose settings run commands of whoever works there",
        code="unsafe-path",
        hint="do not use this overlay; nothing that a server reads is called so",
        found=path,
    )


def overlaid(*layers: Iterable[OutputFile]) -> Iterator[OutputFile]:
    """Outputs of all layers; a later layer replaces what an earlier one has at the same path."""
    by_path: dict[str, OutputFile] = {}
    for layer in layers:
        by_path.update({output.path: output for output in layer})
    yield from by_path.values()
