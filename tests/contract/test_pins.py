"""Commits that nobody gave, and scripts that a recipe does not know."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, codes, make_hub, next_overlay, subject_of

from overlay.contract.checks import pins as pins_module
from overlay.contract.checks.pins import check_pins
from overlay.contract.scripts import KNOWN, KnownScript, known_for
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, OVERLAY_REVISION
from overlay.demo.papers import MATERIALIZER
from overlay.registry.lock import LockedModel, LockedScript

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

PUBLISHED = "8481fc322973c309ab78961d4dfd2b4450ea97f393ad4fe2b54de62312979c0b"
SCRIPT = "_overlay/materialize.py"
COMPONENTS = "[text_encoder, tokenizer, processor]"


def with_code(subject: Subject, code: str) -> list[Finding]:
    """The findings of one code."""
    return [finding for finding in check_pins(subject) if finding.code == code]


def sha256_of(text: str) -> str:
    """As 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_script(tmp_path: Path, text: str, *, recipe: str = "{name: vdn-h3, stage: stage-dmd-step-250}") -> Subject:
    """The entry, with this script in the overlay."""
    hub = make_hub(tmp_path)
    (hub.overlay_folder / SCRIPT).write_text(text)
    return subject_of(hub, tmp_path, registry=registry(hub, recipe=recipe))


def registry(
    hub: HubFolder, *, source: str | None = None, overlay: str | None = None, need: str | None = None, recipe: str
) -> str:
    """The entry with other words in the place of its commits."""
    return f"""\
schema_version: 1
models:
  {MODEL}:
    source:
      {source or f"revision: {hub.source}"}
    overlay:
      repo: {OVERLAY_REPO}
      {overlay or f"revision: {hub.overlay}"}
    needs:
      - repo: {NEEDS_REPO}
        {need or f"revision: {NEEDS_REVISION}"}
        components: {COMPONENTS}
    recipe: {recipe}
"""


def test_everything_pinned(tmp_path: Path) -> None:
    """The made repos as they come: nothing to say."""
    assert [*check_pins(subject_of(make_hub(tmp_path), tmp_path))] == []


@pytest.mark.parametrize(
    ("which", "repo", "revision", "place"),
    [
        ("source", MODEL, "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14", (5, 7)),
        ("overlay", OVERLAY_REPO, OVERLAY_REVISION, (8, 7)),
        ("need", NEEDS_REPO, NEEDS_REVISION, (11, 9)),
    ],
)
def test_h29_a_repo_without_a_commit(
    tmp_path: Path, which: str, repo: str, revision: str, place: tuple[int, int]
) -> None:
    """With the reason that the registry gives, where it gives it, and the commit that it stands for now."""
    hub = make_hub(tmp_path)
    floating = {which: "floating: nobody knows the commit"}
    text = registry(hub, **floating, recipe="{name: vdn-h3, stage: stage-dmd-step-250}")

    (finding,) = check_pins(subject_of(hub, tmp_path, registry=text))

    assert finding.code == "unpinned"
    assert finding.severities == {"overlay": "warning", "sglang": "warning"}
    assert finding.message == (
        f"{repo} has no commit (nobody knows the commit), so what is built today may differ tomorrow"
    )
    assert (finding.place.line, finding.place.column) == place
    assert finding.fix == f"write revision: {revision} (its head now)"
    assert finding.data == {"repo": repo, "reason": "nobody knows the commit", "revision": revision}


def test_h30_each_repo_has_a_pin_of_its_own(tmp_path: Path) -> None:
    """A pinned overlay pins neither the source nor the needs: each that floats is a finding."""
    hub = make_hub(tmp_path)
    text = registry(hub, source="floating: a", need="floating: b", recipe="{name: vdn-h3, stage: stage-dmd-step-250}")

    findings = [*check_pins(subject_of(hub, tmp_path, registry=text))]

    assert [(finding.code, finding.data["repo"]) for finding in findings] == [
        ("unpinned", MODEL),
        ("unpinned", NEEDS_REPO),
    ]


@pytest.mark.parametrize("recipe", ["{name: vdn-h3, stage: stage-dmd-step-250}", "{name: python}"])
@pytest.mark.parametrize(
    ("script", "floats"),
    [
        (f'snapshot_download("{NEEDS_REPO}")\n', True),
        (f'snapshot_download("{NEEDS_REPO}", revision="main")\n', True),
        (f'snapshot_download("{NEEDS_REPO}", revision="{"0" * 40}")\n', True),
        (f'snapshot_download("{NEEDS_REPO}", revision="{NEEDS_REVISION}")\n', False),
        ('snapshot_download("somebody/else")\n', False),
    ],
)
def test_h30_a_script_that_takes_a_need_unpinned(tmp_path: Path, script: str, floats: bool, recipe: str) -> None:  # noqa: FBT001 - a parameter of the table
    """A script that names the repo and not the commit cannot ask for the commit; the need's pin is the place."""
    findings = with_code(with_script(tmp_path, script, recipe=recipe), "secondary-unpinned")

    assert codes(findings) == ["secondary-unpinned"] * floats
    for finding in findings:
        assert finding.severities == {"overlay": "note", "sglang": "warning"}
        assert finding.message.startswith(
            f"the overlay's {SCRIPT} takes {NEEDS_REPO} without a commit, and the entry pins it to"
            f" {NEEDS_REVISION[:12]}"
        )
        assert (finding.place.line, finding.place.column) == (11, 9)
        assert f"overlay prewarm {MODEL}" in str(finding.fix)
        assert "consumers: [overlay]" in str(finding.fix)


def test_the_published_script_is_known_to_take_its_need_unpinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a known script does is known by its digest, whatever its text looks like."""
    assert KNOWN[PUBLISHED].floating == (NEEDS_REPO,)
    monkeypatch.setattr(
        pins_module, "KNOWN", {sha256_of("as published"): KnownScript("vdn-h3", "here", "0" * 40, (NEEDS_REPO,))}
    )

    assert codes(with_code(with_script(tmp_path, "as published"), "secondary-unpinned")) == ["secondary-unpinned"]


def test_a_need_that_floats_is_said_once(tmp_path: Path) -> None:
    """The entry itself pins nothing, so there is nothing that the script could miss."""
    hub = make_hub(tmp_path)
    (hub.overlay_folder / SCRIPT).write_text(f'snapshot_download("{NEEDS_REPO}")')
    text = registry(hub, need="floating: b", recipe="{name: python}")

    assert codes(check_pins(subject_of(hub, tmp_path, registry=text))) == ["unpinned", "script-unpinned"]


def test_known_scripts() -> None:
    """The published script and the stand-in of made-up checkpoints; other recipes repeat none."""
    assert known_for("vdn-h3").keys() == {PUBLISHED, sha256_of(MATERIALIZER)}
    assert KNOWN[PUBLISHED].revision == OVERLAY_REVISION
    assert known_for("python") == {}


@pytest.mark.parametrize("history", ["before", "lock", "none"])
def test_another_script_under_a_native_recipe(tmp_path: Path, history: str) -> None:
    """Nobody has seen what it does: an error for whoever builds by the recipe, at the overlay's pin."""
    hub = make_hub(tmp_path)
    changed = next_overlay(hub, "another script")
    (changed.overlay_folder / SCRIPT).write_text("print('other')\n")
    lock = LockedModel(
        recipe={}, location="there", repos={}, script=LockedScript(path=SCRIPT, sha256=sha256_of(MATERIALIZER))
    )
    subject = subject_of(
        changed,
        tmp_path,
        before=subject_of(hub, tmp_path) if history == "before" else None,
        locked=lock if history == "lock" else None,
    )

    (finding,) = check_pins(subject)

    now, then = sha256_of("print('other')\n"), sha256_of(MATERIALIZER)
    was = "" if history == "none" else f"; it was {then[:12]} before"
    assert finding.code == "script-changed"
    assert finding.severities == {"overlay": "error", "sglang": "note"}
    assert finding.message.startswith(
        f"{OVERLAY_REPO}@{changed.overlay[:12]}: {SCRIPT} has sha256 {now[:12]}{was}; recipe vdn-h3 repeats"
        f" {PUBLISHED[:12]} (kevin-mi/VDN-H3-overlay@7de18275dddf)"
    )
    assert (finding.place.line, finding.place.column) == (5, 46)
    assert finding.fix == f"overlay bump {MODEL} --overlay-to {OVERLAY_REVISION}"
    assert finding.data["sha256"] == now
    assert finding.data["before"] == (None if history == "none" else then)


def test_other_recipes_repeat_no_script(tmp_path: Path) -> None:
    """An entry that is built by the script itself has nothing to compare it with."""
    assert with_code(with_script(tmp_path, "print('other')", recipe="{name: python}"), "script-changed") == []


def test_an_entry_that_runs_the_script_without_a_pin(tmp_path: Path) -> None:
    """A note with the whole digest, which is what to pin; nothing for an entry that pins it, whatever its limits."""
    text = "print('mine')"
    [finding] = with_code(with_script(tmp_path, text, recipe="{name: python}"), "script-unpinned")

    assert (finding.severity, finding.data["sha256"]) == ("note", sha256_of(text))
    assert sha256_of(text) in finding.message
    assert f"script: {{sha256: {sha256_of(text)}}}" in str(finding.fix)
    pinned = f"{{name: python, script: {{sha256: {sha256_of(text)}}}, limits: {{time: 1h}}}}"
    assert codes(check_pins(with_script(tmp_path / "pinned", text, recipe=pinned))) == []


def test_another_script_than_the_entry_pins(tmp_path: Path) -> None:
    """An error that names both: it would not run."""
    recipe = f"{{name: python, script: {{sha256: {sha256_of('before')}}}}}"
    [finding] = with_code(with_script(tmp_path, "after", recipe=recipe), "script-changed")

    assert finding.severity == "error"
    assert (finding.data["sha256"], finding.data["before"]) == (sha256_of("after"), sha256_of("before"))
    assert sha256_of("before")[:12] in finding.message


def test_a_script_too_large_to_be_one(tmp_path: Path) -> None:
    """It is not read, and it is none that is known."""
    subject = with_script(tmp_path, "#" * (2**20 + 1))

    assert codes(check_pins(subject)) == ["script-changed"]


@pytest.mark.parametrize("spoil", ["script", "manifest"])
def test_an_overlay_that_is_broken_is_said_elsewhere(tmp_path: Path, spoil: str) -> None:
    """Without a manifest nothing is known of a script, and one that is absent makes the manifest a broken one."""
    hub = make_hub(tmp_path)
    (hub.overlay_folder / (SCRIPT if spoil == "script" else "_overlay/overlay_manifest.json")).unlink()
    text = registry(hub, recipe="{name: vdn-h3, stage: stage-dmd-step-250}")

    assert [*check_pins(subject_of(hub, tmp_path, registry=text))] == []
