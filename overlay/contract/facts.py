"""What the repos of a model hold, as its lock says it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from overlay.fingerprint import action_key, bytes_digest
from overlay.formats.files import MAX_CHECKED_FILE, MAX_RANGE
from overlay.formats.licenses import is_license
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import is_metadata
from overlay.hub import HubRepo
from overlay.hub.contents import header_digest
from overlay.planning.compose import part_paths
from overlay.planning.location import overlay_identity
from overlay.planning.outputs import Fused, SafetensorsFile
from overlay.registry.lock import LockedAdapter, LockedFile, LockedModel, LockedRepo, LockedScript, recipe_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.hub.contents import Contents
    from overlay.planning.plan import AdapterUse, Plan

__all__ = ["is_large", "lock_model", "meaning_of", "sha256_of"]

_LARGEST_KEPT = 16 * 2**20
"""Bytes of a small file at most; larger ones are known by digest alone."""

_LARGEST_READ = 16 * 2**20
"""Bytes of a file on this host that a check reads for its sha256, at most."""

_UNREAD = "0" * 64

_WEIGHTS = ".safetensors"


def lock_model(
    subject: Subject, plan: Plan | None, contents: Contents | None = None, *, believed: LockedModel | None = None
) -> LockedModel:
    """Everything that the lock says of a model, but the expected output.

    The same whether its repos come from the Hub or from folders: a small file that a listing knows by its git blob is
    read for its sha256.

    Args:
        subject: The entry, every repo of it at a commit.
        plan: Of the same repos; None for an entry that only its overlay's own Python builds.
        contents: Takes the small files and headers that checks read.
        believed: What is taken for the sha256 of files that would have to be read or fetched whole for it: with it,
            nothing large is.

    Raises:
        OverlayError: A file cannot be read.
    """
    inventory, entry = subject.inventory, subject.entry
    components = {need.pin.repo: need.components for need in entry.needs}
    needed: dict[str, set[str]] = {name: set() for name in inventory.repos}
    for item in plan.inputs() if plan else ():
        needed[item.repo].add(item.path)
    if subject.manifest is not None:
        needed[inventory.source.repo].update(set(subject.manifest.required_source_files) & {*inventory.source.paths()})
    for place in entry.recipe.places:  # also what a part is only compared with
        if entry.recipe.name == "compose":
            needed[place["repo"]].update(part_paths(inventory.repos[place["repo"]].paths(), place["path"]).values())
    if contents is not None:
        for use in plan.adapters if plan else ():
            _keep_scalars(inventory.repos[use.weights.repo], use.weights.path, contents)
    if inventory.overlay is not None:
        needed[inventory.overlay.repo].update(inventory.overlay.paths())
    return LockedModel(
        recipe=recipe_json(entry),
        location=plan.location if plan else _location(subject),
        repos={
            name: _locked_repo(
                repo, needed[name], components.get(name, ()), contents, believed.repos.get(name) if believed else None
            )
            for name, repo in inventory.repos.items()
        },
        adapters=tuple(_locked_adapter(use, plan) for use in plan.adapters) if plan else (),
        script=_script(subject),
    )


def is_large(repo: Repo, path: str) -> bool:
    """Whether the sha256 of a file is neither listed nor to be had for little."""
    if repo.shared_store and repo.digest(path).startswith("sha256:"):
        return False
    at_hand = not repo.shared_store or repo.local(path) is not None
    return repo.size(path) > (_LARGEST_READ if at_hand else MAX_CHECKED_FILE)


def sha256_of(repo: Repo, path: str) -> str:
    """sha256 (64 hex digits) of a file's content; a small file that its listing knows otherwise is read."""
    algorithm, _, value = repo.digest(path).partition(":")
    return value if algorithm == "sha256" else bytes_digest(repo.read_bytes(path), "sha256").partition(":")[2]


def meaning_of(pairs: Iterable[tuple[str, int, float]]) -> str:
    """Digest of what an adapter means: target, rank and float32 scale of every pair."""
    return f"sha256:{action_key([[target, rank, float(scale).hex()] for target, rank, scale in sorted(pairs)])}"


def _locked_repo(
    repo: Repo,
    needed: Collection[str],
    components: tuple[str, ...],
    contents: Contents | None,
    believed: LockedRepo | None,
) -> LockedRepo:
    licenses = [path for path in repo.paths() if is_license(path)]
    wanted = sorted({*needed, *licenses, *_descriptions(repo.paths(), needed)})
    known = {path: _known(path, believed) for path in wanted if believed is not None and is_large(repo, path)}
    if isinstance(repo, HubRepo):  # many at once: one after the other they take a minute
        repo.fetch([path for path in wanted if path not in known and _is_read(repo, path, keep=contents is not None)])
        repo.fetch_headers([path for path in wanted if path.endswith(_WEIGHTS)])
    return LockedRepo(
        revision=repo.revision,
        components=components,
        licenses=tuple(sorted(licenses)),
        files={path: _locked_file(repo, path, known.get(path) or sha256_of(repo, path), contents) for path in wanted},
    )


def _known(path: str, believed: LockedRepo) -> str:
    return believed.files[path].sha256 if path in believed.files else _UNREAD


def _descriptions(paths: Sequence[str], needed: Collection[str]) -> list[str]:
    """The JSON files beside needed files: indexes, configs, both names of an adapter's spec, stamps of a fuse."""
    folders = {path.rpartition("/")[0] for path in needed}
    return [path for path in paths if path.endswith(".json") and path.rpartition("/")[0] in folders]


def _is_read(repo: Repo, path: str, *, keep: bool) -> bool:
    """Whether the content of a file counts here, not its listing or header alone."""
    if path.endswith(_WEIGHTS):
        return False
    return not repo.digest(path).startswith("sha256:") or (keep and _is_kept(path, repo.size(path)))


def _is_kept(path: str, size: int) -> bool:
    return size <= _LARGEST_KEPT and (is_metadata(path) or is_license(path))


def _locked_file(repo: Repo, path: str, sha256: str, contents: Contents | None) -> LockedFile:
    size = repo.size(path)
    if path.endswith(_WEIGHTS):
        header = repo.header(path)
        if contents is not None:
            contents.keep_header(sha256, header)
        return LockedFile(size=size, sha256=sha256, tensors=len(header.tensors), header=header_digest(header))
    if contents is not None and _is_kept(path, size):
        contents.keep_file(sha256, repo.read_bytes(path))
    return LockedFile(size=size, sha256=sha256)


def _keep_scalars(repo: Repo, path: str, contents: Contents) -> None:
    """Keep the scalars of an adapter's weights: some layouts have a module's alpha there."""
    header = repo.header(path)
    places = {header.offset(info.name): info.nbytes for info in header.tensors.values() if math.prod(info.shape) == 1}
    if not places:
        return
    first, end = min(places), max(start + nbytes for start, nbytes in places.items())
    if end - first <= MAX_RANGE:  # mostly they lie side by side, so one request brings them all
        data = repo.read_range(path, first, end - first)
        found = {start: data[start - first : start - first + nbytes] for start, nbytes in places.items()}
    else:
        found = {start: repo.read_range(path, start, nbytes) for start, nbytes in places.items()}
    contents.keep_scalars(sha256_of(repo, path), found)


def _locked_adapter(use: AdapterUse, plan: Plan) -> LockedAdapter:
    terms = {  # rows of one weight may be in many pieces
        (tensor.name, term.a): (tensor.name, term.rank, term.scale)
        for output in plan.outputs
        if isinstance(output, SafetensorsFile)
        for tensor in output.tensors
        for piece in tensor.pieces
        if isinstance(piece, Fused)
        for term in piece.terms
        if term.a.input == use.weights
    }
    pairs = list(terms.values())
    return LockedAdapter(
        name=use.name,
        kind=use.kind,
        weights=f"{use.weights.repo}/{use.weights.path}",
        spec=f"{use.spec.repo}/{use.spec.path}" if use.spec else None,
        pairs=len(pairs),
        ranks=tuple(sorted({rank for _, rank, _ in pairs})),
        scales=tuple(sorted({scale for _, _, scale in pairs})),
        meaning=meaning_of(pairs),
    )


def _script(subject: Subject) -> LockedScript | None:
    overlay, manifest = subject.inventory.overlay, subject.manifest
    path = manifest.custom_materializer if manifest else None
    if overlay is None or path is None or path not in overlay.paths():
        return None
    return LockedScript(path=path, sha256=sha256_of(overlay, path))


def _location(subject: Subject) -> str:
    """Of an entry without a plan, which has an overlay."""
    overlay = subject.inventory.overlay
    if overlay is None:
        raise ValueError(f"{subject.entry.model}: has neither a plan nor an overlay")
    return overlay_identity(subject.entry, overlay, read_manifest(overlay)).location_name
