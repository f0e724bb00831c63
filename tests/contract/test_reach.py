"""What a server's download never brings, and what its manifest insists on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.checks.manifest import MOST_PATTERNS
from overlay.contract.checks.reach import check_reach
from overlay.contract.reading import folded_paths
from overlay.demo.documents import overlay_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
DEFAULT, TURBO = f"{STAGE}/adapters/default", f"{STAGE}/adapters/turbo"
OVERLAY_PIN = (5, 46)
REQUIRED = overlay_manifest(MODEL, "adapter_spec.json")["required_source_files"]
SERVE = f"serve what is built here (overlay prewarm {MODEL}) and write consumers: [overlay] in the entry"
ANY_NAME = [path for path in REQUIRED if not path.endswith("adapter_spec.json")]


def findings_of(tmp_path: Path, *, spec_name: str = "adapter_spec.json", **manifest: object) -> list[Finding]:
    """What is found where the manifest says this."""
    hub: HubFolder = make_hub(tmp_path, spec_name=spec_name)
    edit_json(hub.overlay_folder / "_overlay" / "overlay_manifest.json", lambda it: it.update(manifest))
    return [*check_reach(subject_of(hub, tmp_path))]


@pytest.mark.parametrize(
    "patterns",
    [
        None,
        ["h3-base/**", f"{STAGE}/**"],
        ["h3-base/", f"{STAGE}/"],
        ["*"],
        ["*.json", "*.safetensors"],
    ],
)
def test_a_manifest_that_insists_on_neither_name(tmp_path: Path, patterns: list[str] | None) -> None:
    """Both names would do, and everything is downloaded: nothing to say."""
    assert findings_of(tmp_path, required_source_files=ANY_NAME, source_allow_patterns=patterns) == []


@pytest.mark.parametrize(
    ("there", "other"),
    [("adapter_spec.json", "adapter_config.json"), ("adapter_config.json", "adapter_spec.json")],
)
def test_a_manifest_that_insists_on_one_name(tmp_path: Path, there: str, other: str) -> None:
    """The published case: the script falls back to the other name, the manifest never lets it come to that."""
    (finding,) = findings_of(tmp_path, spec_name=there)

    assert finding.code == "fallback-unreachable"
    assert finding.severities == {"overlay": "note", "sglang": "warning"}
    assert f"may be called {other} too" in finding.message
    assert f"it requires {there} ({STAGE}/adapters/{{default,turbo}})" in finding.message
    assert (finding.place.line, finding.place.column) == OVERLAY_PIN
    assert str(finding.fix).startswith(SERVE)
    assert "required_source_files" in str(finding.fix)
    assert finding.data["ruled_out"] == [f"{DEFAULT}/{other}", f"{TURBO}/{other}"]


def test_patterns_that_leave_one_name_out(tmp_path: Path) -> None:
    """Patterns rule a name out as well as a list of files."""
    patterns = ["h3-base/**", "*.safetensors", "*spec.json", f"{STAGE}/linear_branch/*", f"{STAGE}/metadata.json"]

    (finding,) = findings_of(tmp_path, required_source_files=ANY_NAME, source_allow_patterns=patterns)

    assert finding.code == "fallback-unreachable"
    assert "none of its source_allow_patterns matches that" in finding.message
    assert finding.data["ruled_out"] == [f"{DEFAULT}/adapter_config.json", f"{TURBO}/adapter_config.json"]


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        pytest.param(
            ["h3-base/**", f"{STAGE}/adapters/**", f"{STAGE}/*.json", f"{STAGE}/linear_branch/*.json"],
            [f"{STAGE}/linear_branch/model.safetensors"],
            id="a-required-file",
        ),
        pytest.param(
            ["*.json", "h3-base/*_vae/**", "h3-base/vae/**", f"{STAGE}/**"],
            [f"h3-base/transformer/diffusion_pytorch_model-0000{number}-of-00002.safetensors" for number in (1, 2)],
            id="shards-that-nobody-requires-by-name",
        ),
        pytest.param(
            ["h3-base/**", f"{STAGE}/adapters/**", f"{STAGE}/linear_branch/*"],
            [f"{STAGE}/metadata.json"],
            id="a-file-of-the-recipe",
        ),
        pytest.param(
            ["h3-base/**", f"{STAGE}/linear_branch/*", f"{STAGE}/metadata.json", "*.safetensors"],
            [f"{DEFAULT}/adapter_spec.json", f"{TURBO}/adapter_spec.json"],
            id="the-description-that-is-there",
        ),
    ],
)
def test_patterns_that_leave_out_what_the_build_needs(tmp_path: Path, patterns: list[str], left_out: list[str]) -> None:
    """A server would never have the files; this program does not go by the patterns."""
    (finding,) = findings_of(tmp_path, required_source_files=ANY_NAME, source_allow_patterns=patterns)

    assert finding.code == "not-fetched"
    assert finding.severities == {"overlay": "note", "sglang": "error"}
    assert folded_paths(left_out) in finding.message
    assert finding.data["files"] == left_out
    assert finding.data["count"] == len(left_out)
    assert (finding.place.line, finding.place.column) == OVERLAY_PIN
    assert finding.fix == f"{SERVE}, or pin another overlay"


def test_a_renamed_description_is_said_once(tmp_path: Path) -> None:
    """Where the required name is absent that is another finding, and the fallback is not mentioned on top."""
    required = [path.replace("adapter_spec", "adapter_config") for path in REQUIRED]

    assert findings_of(tmp_path, required_source_files=required) == []


def test_more_patterns_than_anyone_writes_are_not_tried(tmp_path: Path) -> None:
    """A hostile list is a broken manifest, which another check says."""
    patterns = [f"*{number}*[a-z]*" for number in range(100_000)]

    assert len(patterns) > MOST_PATTERNS
    assert findings_of(tmp_path, required_source_files=ANY_NAME, source_allow_patterns=patterns) == []
