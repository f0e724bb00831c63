"""Adapters that are described twice."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.checks.specs import check_specs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
TURBO = f"{STAGE}/adapters/turbo"


def _alpha(document: Any) -> None:
    document["config"]["alpha"] = 2


def _spelled(document: Any) -> None:
    document["config"]["rank_pattern"] = dict(reversed(document["config"]["rank_pattern"].items()))


def _nothing(document: Any) -> None:
    del document


@pytest.mark.parametrize(
    ("edit", "differs"), [(_alpha, True), (_spelled, False), (_nothing, False)], ids=["alpha", "spelling", "copy"]
)
def test_both_names(tmp_path: Path, edit: Callable[[Any], None], differs: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """Equal JSON under both names is fine, however it is written; anything else is an error at the source's pin."""
    hub = make_hub(tmp_path)
    folder = hub.source_folder / TURBO
    shutil.copyfile(folder / "adapter_spec.json", folder / "adapter_config.json")
    edit_json(folder / "adapter_config.json", edit)

    findings = [*check_specs(subject_of(hub, tmp_path))]

    assert [finding.code for finding in findings] == ["specs-differ"] * differs
    for finding in findings:
        assert finding.severities == {"overlay": "error", "sglang": "error"}
        assert finding.message.startswith(
            f"{TURBO} of {MODEL}@{hub.source[:12]} has adapter_spec.json and adapter_conf"
        )
        assert "do not say the same" in finding.message
        assert (finding.place.line, finding.place.column) == (4, 14)
        assert finding.fix == f"overlay bump {MODEL}"
        assert finding.data["files"] == [f"{TURBO}/adapter_spec.json", f"{TURBO}/adapter_config.json"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda it: it["adapters"][1]["config"].update(alpha=2), "adapters[1] and"),
        (lambda it: it["adapters"].pop(), "lists 1 adapters; expected 2: default, turbo"),
        (lambda it: it.update(adapters="none"), "adapters is no list of objects"),
        (lambda it: it["adapters"][0].update(type="lokr"), "adapters[0]"),
    ],
)
def test_the_model_spec_says_otherwise(tmp_path: Path, edit: Callable[[Any], object], said: str) -> None:
    """A stage's model_spec.json repeats its adapters; a copy that differs is an error at the source's pin."""
    hub = make_hub(tmp_path)
    edit_json(hub.source_folder / STAGE / "model_spec.json", edit)

    (finding,) = check_specs(subject_of(hub, tmp_path))

    assert finding.code == "specs-differ"
    assert said in finding.message
    assert f"{STAGE}/model_spec.json" in finding.message
    assert (finding.place.line, finding.place.column) == (4, 14)
    assert finding.fix == f"overlay bump {MODEL}"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"rank": 1}', json.dumps({"type": "lora", "version": 9, "config": {}})]
)
def test_what_cannot_be_read_is_not_compared(tmp_path: Path, content: str) -> None:
    """That a description is broken is said by the check that reads adapters."""
    hub = make_hub(tmp_path)
    (hub.source_folder / TURBO / "adapter_config.json").write_text(content)
    assert [*check_specs(subject_of(hub, tmp_path))] == []

    (hub.source_folder / TURBO / "adapter_spec.json").write_text(content)
    assert [*check_specs(subject_of(hub, tmp_path))] == []


def test_a_stage_without_a_model_spec(tmp_path: Path) -> None:
    """There is nothing to compare with."""
    hub = make_hub(tmp_path)
    (hub.source_folder / STAGE / "model_spec.json").unlink()

    assert [*check_specs(subject_of(hub, tmp_path))] == []
