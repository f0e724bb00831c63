"""Checks of entries in the native layout, and of composed ones: what is missing is named, and nothing crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.h3 import H3_REPO, NATIVE_MODEL, native_options, write_h3_hub
from support.hubs import commit
from support.models import write_registry

from overlay.contract.check import check
from overlay.contract.facts import lock_model
from overlay.contract.subject import Subject
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.planning.recipes import make_plan
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

PARTS = (
    "{path: Ref2VA/model_index.json}",
    "{path: Ref2VA/transformer}",
    "{path: FL2VA/video_vae, to: Ref2VA/video_vae, same_as: {path: Ref2VA/video_vae}}",
)


def opened(hub: Path, registry: Path | None, model: str) -> Subject:
    resolution = resolve(model, load_registry(registry))
    memo = DigestMemo(None)
    return Subject(take_inventory(resolution, hub=hub, offline=True, memo=memo, allow_floating=False))


def native(hub: Path) -> Subject:
    return opened(hub, native_options(hub).registry, NATIVE_MODEL)


def composed(hub: Path, *parts: str) -> Subject:
    registry = write_registry(
        hub,
        f"""\
  acme/ref:
    source: {{repo: {H3_REPO}, revision: {commit("a")}}}
    recipe: {{name: compose, parts: [{", ".join(parts)}]}}
""",
    )
    return opened(hub, registry, "acme/ref")


def codes(subject: Subject) -> list[str]:
    return [finding.code for finding in check(subject).findings if finding.severity == "error"]


def test_entries_that_hold(tmp_path: Path) -> None:
    """No finding that is an error."""
    write_h3_hub(tmp_path / "hub")
    assert codes(native(tmp_path / "hub")) == []
    assert codes(composed(tmp_path / "hub", *PARTS)) == []


def test_places_that_are_not_there(tmp_path: Path) -> None:
    """The siblings of a native layout, a part, what a part should be equal to."""
    hub = tmp_path / "hub"
    release, _ = write_h3_hub(hub)
    for part in ("{path: none}", "{path: FL2VA/video_vae, same_as: {path: none}}"):
        assert "file-missing" in codes(composed(hub, part))
    (release / "FL2VA").rename(release / "gone")
    assert "file-missing" in codes(native(hub))


def test_parts_that_differ(tmp_path: Path) -> None:
    """Sizes tell without reading; the plan refuses them, so there is a finding."""
    hub = tmp_path / "hub"
    release, _ = write_h3_hub(hub)
    (release / "Ref2VA/video_vae/config.json").write_text('{"other": 1}')
    assert codes(composed(hub, *PARTS))


def test_locks(tmp_path: Path) -> None:
    """The pairs of an adapter are counted once however its rows are cut; what a part is compared with is locked too."""
    hub = tmp_path / "hub"
    write_h3_hub(hub)
    subject = native(hub)
    plan = make_plan(subject.inventory)
    [adapter] = lock_model(subject, plan).adapters
    assert adapter.pairs == plan.adapters[0].num_pairs
    subject = composed(hub, *PARTS)
    locked = lock_model(subject, make_plan(subject.inventory)).repos[H3_REPO]
    assert {"Ref2VA/video_vae/config.json", "FL2VA/video_vae/config.json", "LICENSE"} <= locked.files.keys()
    assert locked.licenses == ("LICENSE",)
