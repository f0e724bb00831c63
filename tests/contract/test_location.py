"""Where a server looks, held against where it looked before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, edit_json, make_hub, next_overlay, next_source, subject_of

from overlay.contract.checks.location import check_location
from overlay.contract.facts import lock_model
from overlay.demo.checkpoint import LORA_FILE, LORA_REPO, LORA_REVISION
from overlay.planning.location import overlay_identity
from overlay.planning.recipes import make_plan
from overlay.registry.lock import LockedModel, LockedRepo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.contract.subject import Subject
    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

MANIFEST = "_overlay/overlay_manifest.json"


def location_of(subject: Subject) -> str:
    """What the server names the directory."""
    overlay, manifest = subject.inventory.overlay, subject.manifest
    assert overlay is not None
    assert manifest is not None
    return overlay_identity(subject.entry, overlay, manifest).location_name


def locked_at(subject: Subject, location: str) -> LockedModel:
    """A lock of these pins."""
    repos = {repo.repo: LockedRepo(revision=repo.revision, files={}) for repo in subject.inventory.repos.values()}
    return LockedModel(recipe={}, location=location, repos=repos)


def next_version(hub: HubFolder) -> HubFolder:
    """An overlay whose materializer says that it has another version."""
    bumped = next_overlay(hub, "version 2")
    edit_json(bumped.overlay_folder / MANIFEST, lambda it: it.update(materializer_version="v2"))
    return bumped


def source_pinned(hub: HubFolder) -> HubFolder:
    """An overlay whose manifest names a commit of the source."""
    bumped = next_overlay(hub, "source revision")
    edit_json(bumped.overlay_folder / MANIFEST, lambda it: it.update(source_revision="5" * 40))
    return bumped


def test_a_fingerprint_of_other_files(tmp_path: Path) -> None:
    """An overlay moved without its fingerprint: what reads no file would look in a directory that no server uses."""
    hub = make_hub(tmp_path)
    text = f"""\
schema_version: 1
models:
  {MODEL}:
    source: {{revision: {hub.source}}}
    overlay:
      repo: kevin-mi/VDN-H3-overlay
      revision: {hub.overlay}
      fingerprint: {"0" * 64}
"""
    [finding] = check_location(subject_of(hub, tmp_path, registry=text))

    assert (finding.code, finding.severity) == ("fingerprint-differs", "error")
    assert finding.severities == {"overlay": "error", "sglang": "note"}
    assert str(finding.place).endswith(":8:7")  # where fingerprint stands
    assert finding.fix == f"overlay bump {MODEL}"
    fixed = text.replace("0" * 64, str(finding.data["fingerprint"]))
    assert list(check_location(subject_of(hub, tmp_path, registry=fixed))) == []


def test_a_manifest_that_names_another_source_commit(tmp_path: Path) -> None:
    """A server would build from the manifest's commit, this program from the entry's."""
    hub = make_hub(tmp_path)
    moved = source_pinned(hub)
    [finding] = check_location(subject_of(moved, tmp_path))

    assert (finding.code, finding.severity) == ("source-revision-differs", "warning")
    assert finding.place.line == 4
    assert finding.fix == f"overlay bump {MODEL} --source-to {'5' * 40}"
    edit_json(moved.overlay_folder / MANIFEST, lambda it: it.update(source_revision=hub.source))
    assert list(check_location(subject_of(moved, tmp_path))) == []


@pytest.mark.parametrize(
    ("bump", "reasons"),
    [
        pytest.param(lambda hub: next_overlay(hub, "nothing"), ["overlay_revision"], id="overlay-revision"),
        pytest.param(
            next_version, ["materializer_version v1 is now v2", "overlay_fingerprint", "overlay_revision"], id="version"
        ),
        pytest.param(
            source_pinned,
            ["overlay_fingerprint", "overlay_revision", "source_revision none is now 555555555555"],
            id="source-revision",
        ),
    ],
)
def test_another_location_than_before(
    tmp_path: Path, bump: Callable[[HubFolder], HubFolder], reasons: list[str]
) -> None:
    """The finding names both directories and each field of the server's key that differs."""
    hub = make_hub(tmp_path)
    before = subject_of(hub, tmp_path)
    subject = subject_of(bump(hub), tmp_path, before=before)

    (finding,) = [found for found in check_location(subject) if found.code == "location-changed"]

    assert finding.code == "location-changed"
    assert finding.severities == {"overlay": "note", "sglang": "warning"}
    assert finding.message.startswith(
        f"a server looks in {location_of(subject)} now, and looked in {location_of(before)} before: {reasons[0]}"
    )
    assert finding.message.count(" is now ") == len(reasons)
    for reason in reasons:
        assert reason in finding.message
    assert (finding.place.line, finding.place.column) == (5, 46)
    assert finding.fix == f"overlay prewarm {MODEL}"
    assert finding.data == {"before": location_of(before), "after": location_of(subject)}


def test_the_same_location(tmp_path: Path) -> None:
    """A source that moves is not in the key, so nothing changes for a server; without a history nothing can."""
    hub = make_hub(tmp_path)
    before = subject_of(hub, tmp_path)

    assert [*check_location(before)] == []
    assert [*check_location(subject_of(next_source(hub, "moved"), tmp_path, before=before))] == []
    assert [*check_location(subject_of(hub, tmp_path, locked=locked_at(before, location_of(before))))] == []


def test_another_location_than_in_the_lock(tmp_path: Path) -> None:
    """The lock has no fields of the key; the pins that moved since are named instead."""
    hub = make_hub(tmp_path)
    old = subject_of(hub, tmp_path)
    bumped = next_overlay(hub, "moved")
    subject = subject_of(bumped, tmp_path, locked=locked_at(old, location_of(old)))

    (finding,) = [found for found in check_location(subject) if found.code == "location-changed"]

    assert finding.data == {"before": location_of(old), "after": location_of(subject)}
    assert f"kevin-mi/VDN-H3-overlay {hub.overlay[:12]} is now {bumped.overlay[:12]};" in finding.message


def test_a_location_that_was_edited_in_the_lock_is_no_change(tmp_path: Path) -> None:
    """Under the pins that were locked a location does not move: that the lock differs is said of the lock."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    locked = lock_model(subject, make_plan(subject.inventory)).model_copy(update={"location": "x"})

    assert not [f for f in check_location(replace(subject, locked=locked)) if f.code == "location-changed"]


def test_what_was_before_counts_more_than_the_lock(tmp_path: Path) -> None:
    """A change that relocks as well changes the location all the same."""
    hub = make_hub(tmp_path)
    before, bumped = subject_of(hub, tmp_path), next_overlay(hub, "moved")
    relocked = locked_at(subject_of(bumped, tmp_path), location_of(subject_of(bumped, tmp_path)))

    assert len([*check_location(subject_of(bumped, tmp_path, locked=relocked, before=before))]) == 1


@pytest.mark.parametrize("which", ["now", "before"])
def test_a_manifest_that_cannot_be_read_says_nothing(tmp_path: Path, which: str) -> None:
    """Without it there is no key; that it is broken is another finding."""
    hub = make_hub(tmp_path)
    bumped = next_overlay(hub, "moved")
    ((bumped if which == "now" else hub).overlay_folder / MANIFEST).write_text("{")

    assert [*check_location(subject_of(bumped, tmp_path, before=subject_of(hub, tmp_path)))] == []


def test_an_entry_without_an_overlay_is_named_by_its_pins(tmp_path: Path) -> None:
    """Its location is this program's own; a source that moves changes it, at the source's pin."""
    hub = make_hub(tmp_path)

    def text(at: HubFolder) -> str:
        return f"""\
schema_version: 1
models:
  studio/watercolor:
    source: {{repo: {MODEL}, revision: {at.source}}}
    needs:
      - {{repo: {LORA_REPO}, revision: {LORA_REVISION}}}
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: h3-base/transformer}}
      adapters: [{{repo: {LORA_REPO}, path: {LORA_FILE.format(rank=8)}}}]
"""

    model, bumped = "studio/watercolor", next_source(hub, "moved")
    before = subject_of(hub, tmp_path, model=model, registry=text(hub))

    (finding,) = check_location(subject_of(bumped, tmp_path, model=model, registry=text(bumped), before=before))

    assert f"{MODEL} {hub.source[:12]} is now {bumped.source[:12]}" in finding.message
    assert (finding.place.line, finding.place.column) == (4, 44)

    other = text(hub).replace("rank8", "rank4")
    (finding,) = check_location(subject_of(hub, tmp_path, model=model, registry=other, before=before))

    base = f"lora (base {MODEL}/h3-base/transformer, adapters {LORA_REPO}"
    former, now = LORA_FILE.format(rank=8), LORA_FILE.format(rank=4)
    assert f": recipe {base}/{former}) is now {base}/{now});" in finding.message
