"""From an inventory to a plan, by the recipe that the registry entry names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.errors import BrokenInput, InvalidUsage, Untrusted
from overlay.formats.manifest import read_manifest
from overlay.formats.materialized import MARKER_NAME, RECORD_NAME
from overlay.formats.model_index import read_model_index
from overlay.planning.location import fingerprint_notes, overlay_identity
from overlay.planning.lora import lora
from overlay.planning.mappings import mappings
from overlay.planning.outputs import GeneratedFile
from overlay.planning.plan import InputBook, Plan, finish, overlaid
from overlay.planning.vdn_h3 import vdn_h3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.formats.files import Files
    from overlay.formats.manifest import Manifest
    from overlay.hub import Inventory
    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import AdapterUse
    from overlay.registry import Entry

__all__ = ["RULES", "check_buildable", "check_rule", "make_plan"]

MODEL_INDEX = "model_index.json"
RULES = ("fp32-once", "openvdn")


def check_buildable(entry: Entry, manifest: Manifest | None = None) -> None:
    """Refuse an entry whose overlay can only be built by its own Python.

    Args:
        manifest: The overlay's, once it is known: mappings alone do not make what its script would.

    Raises:
        Untrusted: It is one.
    """
    scripted = entry.recipe.name == "mappings" and manifest is not None and manifest.custom_materializer
    if entry.recipe.name == "python" or scripted:
        raise Untrusted(
            f"{entry.model}: overlay {entry.overlay} is built by its own Python script, which does not run here",
            code="needs-sandboxed-runner",
            hint="this version builds the recipes vdn-h3, lora and mappings; there is no sandboxed runner yet",
            model=entry.model,
        )


def check_rule(rule: str) -> None:
    """Refuse a name that is no numeric rule.

    Raises:
        InvalidUsage: It is none.
    """
    if rule not in RULES:
        raise InvalidUsage(f"no rule {rule!r}", code="unknown-rule", hint=f"rule is one of {', '.join(RULES)}")


def make_plan(inventory: Inventory, rule: str = RULES[0]) -> Plan:
    """Every output file of a model, known from headers, small files and digests.

    Raises:
        InvalidUsage: No such rule.
        BrokenInput: The inputs are not what the recipe or the overlay's manifest needs.
    """
    check_rule(rule)
    entry = inventory.resolution.entry
    books = {repo.repo: InputBook(repo, repo.repo, repo.revision, repo.digest) for repo in inventory.repos.values()}
    source = books[inventory.source.repo]
    overlay = books[inventory.overlay.repo] if inventory.overlay is not None else None
    manifest = read_manifest(overlay.files) if overlay is not None else None
    if manifest is not None:
        check_buildable(entry, manifest)
        _check_required(inventory, manifest)

    adapters: tuple[AdapterUse, ...] = ()
    fused_before: tuple[str, ...] = ()
    reads: list[str] = []
    outputs: list[OutputFile]
    match entry.recipe.name:
        case "vdn-h3" if overlay is not None:
            components = {name: books[need.pin.repo] for need in entry.needs for name in need.components}
            stage = str(entry.recipe.options["stage"])
            outputs, adapters, reads = vdn_h3(entry.model, source, overlay, components, stage, rule)
        case "lora":
            by_name = {**books, entry.source.repo: source}
            options = entry.recipe.options
            outputs, adapters, fused_before = lora(by_name, options["base"], options["adapters"])
        case "mappings" if overlay is not None and manifest is not None:
            outputs = mappings(source, overlay, manifest)
        case name:
            raise ValueError(f"{entry.model}: recipe {name} without what it needs passed the registry")
    if overlay is not None:
        _check_components(overlay.files, outputs)
    notes = (*inventory.resolution.notes, *inventory.notes)
    if inventory.overlay is None:
        location = sglang.location_name(entry, None)
    else:
        identity = overlay_identity(entry, inventory.overlay)
        location = identity.location_name
        notes += fingerprint_notes(entry, inventory.overlay, identity)
        marker = sglang.marker_bytes(identity, f"{entry.model}@{inventory.source.revision}")
        outputs = list(overlaid(outputs, [GeneratedFile(MARKER_NAME, marker)]))
    return Plan(
        model=entry.model,
        rule=rule,
        location=location,
        # The tree gets a record of its own, which says what that of a base said.
        outputs=finish((output for output in outputs if output.path != RECORD_NAME), entry.model),
        adapters=adapters,
        fused_before=fused_before,
        reads=tuple(source(path) for path in reads),
        notes=notes,
    )


def _check_components(overlay: Files, outputs: Sequence[OutputFile]) -> None:
    """Every component that the overlay's model index promises has a folder; a server refuses the tree otherwise."""
    if MODEL_INDEX not in overlay.paths():
        return
    made = {output.path.partition("/")[0] for output in outputs if "/" in output.path}
    missing = sorted(read_model_index(overlay, MODEL_INDEX).components.keys() - made)
    if missing:
        raise BrokenInput(
            f"{overlay.where(MODEL_INDEX)}: names components that the recipe does not make: {', '.join(missing)}",
            code="component-missing",
            hint="pin an overlay and a source that belong together, or correct the entry's needs",
            missing=missing,
        )


def _check_required(inventory: Inventory, manifest: Manifest) -> None:
    present = set(inventory.source.paths())
    missing = [path for path in manifest.required_source_files if path not in present]
    if not missing:
        return
    twins = {"adapter_config.json": "adapter_spec.json", "adapter_spec.json": "adapter_config.json"}
    renamed = [
        twin
        for path in missing
        for old, new in twins.items()
        if path.endswith(f"/{old}") and (twin := f"{path.removesuffix(old)}{new}") in present
    ]
    hint = "pin an overlay and a source that belong together"
    if renamed:
        hint = f"the source has {renamed[0]} instead: pin the overlay revision that asks for that name"
    raise BrokenInput(
        f"{inventory.source.name}: the overlay requires files that are not there: {', '.join(missing)}",
        code="required-file-missing",
        hint=hint,
        missing=missing,
        renamed=renamed,
    )
