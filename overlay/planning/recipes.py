"""From an inventory to a plan, by the recipe that the registry entry names."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.errors import BrokenInput, NotHere, Untrusted
from overlay.fingerprint import bytes_digest
from overlay.formats.manifest import read_manifest
from overlay.formats.materialized import MARKER_NAME, RECORD_NAME
from overlay.formats.wording import some
from overlay.planning.compose import compose
from overlay.planning.licenses import with_licenses
from overlay.planning.location import fingerprint_notes, overlay_identity
from overlay.planning.lora import lora
from overlay.planning.mappings import mappings
from overlay.planning.outputs import CarriedFile, GeneratedFile
from overlay.planning.plan import InputBook, Plan, finish, overlaid
from overlay.planning.renames import find_renames
from overlay.planning.reserved import require_unreserved
from overlay.planning.rules import DEFAULT_RULE, check_rule
from overlay.planning.scripted import python
from overlay.planning.sources import Outcome, Sources
from overlay.planning.tree import Carried, component_problems, weight_problems
from overlay.planning.vdn_h3 import COMPONENTS, needed_files, vdn_h3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from overlay.formats.manifest import Manifest
    from overlay.hub import Inventory, Repo
    from overlay.planning.outputs import OutputFile
    from overlay.registry import Entry

__all__ = ["check_buildable", "files_to_digest", "make_plan", "stand_in_digest"]

_RECIPES: Mapping[str, Callable[[Entry, Sources, str], Outcome]] = {
    "vdn-h3": vdn_h3,
    "lora": lora,
    "compose": compose,
    "mappings": mappings,
    "python": python,
}

_NOT_IN_THE_COMMIT = {"no-such-file", "no-such-adapter", "no-weights"}
"""Codes of readers for what a repo that can be listed does not have."""


def check_buildable(entry: Entry, manifest: Manifest | None = None) -> None:
    """Refuse an entry whose overlay is built by its own Python, and no script is pinned that may run.

    Args:
        manifest: The overlay's, once it is known: mappings alone do not make what its script would.

    Raises:
        Untrusted: It is one.
    """
    scripted = entry.recipe.name == "mappings" and manifest is not None and manifest.custom_materializer
    if scripted or not entry.is_buildable:
        raise Untrusted(
            f"{entry.model}: overlay {entry.overlay} is built by its own Python script, and the entry does not pin one",
            code="script-not-pinned",
            hint="read the script, then pin it in a registry of yours: recipe: {name: python, script: {sha256: ...}};"
            f" its digest: overlay check {entry.model}",
            model=entry.model,
        )


def files_to_digest(inventory: Inventory, rule: str) -> tuple[tuple[Repo, str], ...]:
    """Files of folders whose digests a plan asks for: found by making one with stand-ins, which reads none of them.

    Raises:
        OverlayError: As :func:`make_plan`.
    """
    asked: dict[tuple[str, str], tuple[Repo, str]] = {}

    def asked_for(repo: Repo, path: str) -> str:
        if not repo.shared_store:
            asked[repo.repo, path] = repo, path
        return stand_in_digest(repo, path)

    if not all(repo.shared_store for repo in inventory.repos.values()):
        make_plan(inventory, rule, asked_for)
    return tuple(asked.values())


def stand_in_digest(repo: Repo, path: str) -> str:
    """The digest of a file by its listing; in a folder, whose file would be read whole, one that is made up.

    For plans that are not compared with others: which files they take does not depend on content.
    """
    return repo.digest(path) if repo.shared_store else bytes_digest(f"{repo.repo}/{path}".encode(), "sha256")


def _own_digest(repo: Repo, path: str) -> str:
    return repo.digest(path)


def make_plan(inventory: Inventory, rule: str = DEFAULT_RULE, digest: Callable[[Repo, str], str] = _own_digest) -> Plan:
    """Every output file of a model, known from headers, small files and digests.

    Args:
        digest: Gives the digest of a repo's file.

    Raises:
        InvalidUsage: No such rule.
        BrokenInput: The inputs are not what the recipe or the overlay's manifest needs.
    """
    check_rule(rule)
    entry, overlay = inventory.resolution.entry, inventory.overlay
    sources = _sources(inventory, digest)
    manifest = sources.manifest
    if manifest is not None:
        check_buildable(entry, manifest)
    _check_required(inventory, manifest)
    made = _made(entry, sources, rule)
    require_unreserved(made.outputs, entry.model)
    outputs = with_licenses(made.outputs, sources.by_repo.values())
    notes = (*inventory.resolution.notes, *inventory.notes, *made.notes)
    if overlay is None or manifest is None:
        location = sglang.location_name(entry, None)
    else:
        identity = overlay_identity(entry, overlay, manifest)
        location = identity.location_name
        notes += fingerprint_notes(entry, overlay, identity)
        marker = sglang.marker_bytes(identity, f"{entry.model}@{inventory.source.revision}")
        outputs = list(overlaid(outputs, [GeneratedFile(MARKER_NAME, marker)]))
    # The tree gets a record of its own, which says what that of a base said.
    finished = finish((output for output in outputs if output.path != RECORD_NAME), entry.model)
    if made.script is None:  # else nobody knows the tree yet
        _check_tree(inventory, finished)
    return Plan(
        model=entry.model,
        rule=rule,
        location=location,
        outputs=finished,
        adapters=made.adapters,
        fused_before=made.fused_before,
        reads=made.reads,
        notes=notes,
        script=made.script,
        given=made.script.given if made.script is not None else (),
    )


def _sources(inventory: Inventory, digest: Callable[[Repo, str], str]) -> Sources:
    books = {
        name: InputBook(repo, repo.repo, repo.revision, partial(digest, repo)) for name, repo in inventory.repos.items()
    }
    overlay = books[inventory.overlay.repo] if inventory.overlay is not None else None
    return Sources(
        source=books[inventory.source.repo],
        overlay=overlay,
        needs={name: books[name] for name in inventory.needs},
        manifest=read_manifest(overlay.files) if overlay is not None else None,
        made_up=frozenset(
            name for name, repo in inventory.repos.items() if digest is not _own_digest and not repo.shared_store
        ),
    )


def _check_tree(inventory: Inventory, outputs: Sequence[OutputFile]) -> None:
    """A tree that no server loads, or with carried files that are none, is not built."""
    entry, overlay = inventory.resolution.entry, inventory.overlay
    tree = {output.path: _place(output, inventory) for output in outputs}
    made = COMPONENTS if entry.recipe.name == "vdn-h3" else ()
    try:
        for _, error in chain(component_problems(entry, overlay, tree, made), weight_problems(tree)):
            raise error
    except NotHere as error:
        if error.code != "not-cached":  # what brings the files will name all that are missing
            raise


def _place(output: OutputFile, inventory: Inventory) -> Carried | None:
    overlay = inventory.overlay
    match output:
        case CarriedFile(_, taken):
            return Carried(inventory.repos[taken.repo], taken.path)
        case GeneratedFile(path, data) if overlay is not None and path in overlay.paths():
            return Carried(overlay, path) if overlay.read_bytes(path) == data else None
    return None


def _check_required(inventory: Inventory, manifest: Manifest | None) -> None:
    """Every file of the source that the overlay or the recipe asks for by name is there."""
    recipe = inventory.resolution.entry.recipe
    own = needed_files(str(recipe.options["stage"])) if recipe.name == "vdn-h3" else ()
    asked = (*(manifest.required_source_files if manifest else ()), *own)
    present = set(inventory.source.paths())
    missing = [path for path in dict.fromkeys(asked) if path not in present]
    if not missing:
        return
    renames = find_renames(inventory.source, asked)
    renamed = [renames[path] for path in missing if path in renames]
    by_overlay = manifest is not None and not {*missing}.isdisjoint(manifest.required_source_files)
    hint = "pin an overlay and a source that belong together" if by_overlay else "pin a commit that has them"
    if not inventory.source.shared_store:
        hint = f"put these files into {inventory.source.name}"
    if renamed and by_overlay:
        hint = f"the source has {renamed[0].found} instead: pin the overlay revision that asks for that name"
    elif renamed:
        hint = f"the source has {renamed[0].found} instead: pin a commit that has the name"
    raise BrokenInput(
        f"{inventory.source.name}: {'the overlay' if by_overlay else f'recipe {recipe.name}'} requires files that are"
        f" not there: {some(missing, 20)}",
        code="required-file-missing",
        hint=hint,
        missing=missing,
        renamed=[rename.found for rename in renamed],
    )


def _made(entry: Entry, sources: Sources, rule: str) -> Outcome:
    """What the recipe makes; a file that a pinned commit does not have is no thing to wait for.

    Raises:
        BrokenInput: The inputs are not what it needs.
    """
    try:
        return _RECIPES[entry.recipe.name](entry, sources, rule)
    except NotHere as error:
        if error.code not in _NOT_IN_THE_COMMIT:
            raise
        data = {key: value for key, value in error.data.items() if key != "missing"}
        raise BrokenInput(
            error.message,
            code="required-file-missing",
            hint=error.hint,
            missing=error.data.get("missing") or [error.data.get("where")],
            **data,
        ) from error
