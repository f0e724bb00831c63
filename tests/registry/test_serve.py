"""The section ``serve``: what a server is started with, which changes no byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.registries import ENTRY, VDN, load_text, registry_text

from overlay.errors import InvalidRegistry
from overlay.registry import Launch
from overlay.registry.lock import recipe_json

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SERVE = """\
    serve:
      sglang:
        flags: [--attention-backend, fa, --enable-x]
        env: {OMP_NUM_THREADS: 8, SGLANG_X: "a b"}
        request: {task: t2va}
        grid_points: 9
"""


def refused(folder: Path, text: str) -> InvalidRegistry:
    """The error that a file is refused with."""
    with pytest.raises(InvalidRegistry) as caught:
        load_text(folder, text)
    return caught.value


def served(lines: str) -> str:
    """An override of the shipped model that says only this under ``serve``."""
    return registry_text(f"  {VDN}:\n    serve:\n      sglang:\n        {lines}\n")


def test_the_shipped_registry_says_how_vdn_h3_is_started(tmp_path: Path) -> None:
    """The attention backend is part of the model, and so are nine grid points."""
    launch = load_text(tmp_path, registry_text(ENTRY)).entries[VDN].serve["sglang"]
    assert launch.flags == ("--attention-backend", "hybrid_window_attn_h3")
    assert (launch.grid_points, launch.env, launch.request) == (9, {}, {})


def test_an_override_replaces_it_whole_and_is_shown(tmp_path: Path) -> None:
    """Nothing of the launch data below is left; the note has both, and the place is known."""
    registry = load_text(tmp_path, registry_text(f"  {VDN}:\n{SERVE}"))
    launch = registry.entries[VDN].serve["sglang"]
    assert launch == Launch(
        ("--attention-backend", "fa", "--enable-x"), {"OMP_NUM_THREADS": "8", "SGLANG_X": "a b"}, {"task": "t2va"}, 9
    )
    assert str(launch.place) == f"{tmp_path}/mine.yaml:5:7"
    [note] = registry.replaced[VDN]
    assert note.startswith(
        "serve sglang (--attention-backend fa --enable-x, OMP_NUM_THREADS=8, SGLANG_X=a b, task t2va"
    )
    assert "replaces sglang (--attention-backend hybrid_window_attn_h3, 9 grid points)" in note


def test_another_recipe_drops_it(tmp_path: Path) -> None:
    """Steps are those of a stage: an override of the stage alone leaves none, and the user is told."""
    registry = load_text(tmp_path, registry_text(f"  {VDN}:\n    recipe: {{name: vdn-h3, stage: stage-b-step-2000}}\n"))
    assert registry.entries[VDN].serve == {}
    assert any(note.startswith("serve none replaces sglang (") for note in registry.replaced[VDN])
    same = registry_text(f"  {VDN}:\n    recipe: {{name: vdn-h3, stage: stage-dmd-step-250}}\n")
    assert load_text(tmp_path, same).entries[VDN].serve["sglang"].grid_points == 9


def test_it_changes_nothing_of_the_build(tmp_path: Path) -> None:
    """Two entries that differ in it alone are equal, and so is what a lock says of them."""
    one = load_text(tmp_path, registry_text(ENTRY)).entries[VDN]
    other = load_text(tmp_path, registry_text(f"  {VDN}:\n{SERVE}")).entries[VDN]
    assert one.serve != other.serve
    assert one == other
    assert recipe_json(one) == recipe_json(other)


# (what stands under the server, the code, part of the message)
CASES = {
    "unknown key": ("flag: [--x]", "unknown-key", "unknown key flag"),
    "flags as text": ("flags: --x", "wrong-type", "expected a list"),
    "a word before the first flag": ("flags: [serve]", "bad-launch", "'serve'"),
    "an empty word": ('flags: [--x, ""]', "bad-launch", "empty"),
    "another model": ("flags: [--x, --model-path, /etc]", "reserved-launch", "--model-path"),
    "another model, joined": ("flags: [--model=acme/x]", "reserved-launch", "--model"),
    "a script": ("flags: [--trust-remote-code]", "reserved-launch", "no script"),
    "a secret flag": ("flags: [--api-key, hunter2]", "secret-in-registry", "--api-key"),
    "a line break in a flag": ('flags: ["--x\\nrm -rf /"]', "not-printable", "control characters"),
    "a lower-case variable": ("env: {path: x}", "bad-launch", "'path'"),
    "a variable that is none": ('env: {"A=B; rm": x}', "bad-launch", "'A=B; rm'"),
    "a token": ("env: {HF_TOKEN: hf_x}", "secret-in-registry", "HF_TOKEN"),
    "a key of a cloud": ("env: {AWS_SECRET_ACCESS_KEY: x}", "secret-in-registry", "AWS_SECRET_ACCESS_KEY"),
    "what the loader reads": ("env: {LD_PRELOAD: ./x.so}", "reserved-launch", "LD_PRELOAD"),
    "what python reads": ("env: {PYTHONPATH: .}", "reserved-launch", "PYTHONPATH"),
    "what env says": ("env: {SGLANG_DIFFUSION_CACHE_ROOT: /x}", "reserved-launch", "SGLANG_DIFFUSION_CACHE_ROOT"),
    "a line break in a value": ('env: {A: "x\\ny"}', "not-printable", "control characters"),
    "a field that is none": ("request: {Task: x}", "bad-launch", "'Task'"),
    "steps by a number of two meanings": ("request: {num_inference_steps: 9}", "reserved-launch", "grid points"),
    "one grid point": ("grid_points: 1", "bad-launch", "from 2 to 1000"),
    "endless grid points": (f"grid_points: {'9' * 5000}", "bad-launch", "from 2 to 1000"),
    "no number": ("grid_points: nine", "bad-launch", "'nine'"),
    "digits of another script": ("grid_points: ٩", "bad-launch", "from 2 to 1000"),
}


@pytest.mark.parametrize(("lines", "code", "message"), CASES.values(), ids=CASES)
def test_what_may_not_stand_there(tmp_path: Path, lines: str, code: str, message: str) -> None:
    """Whatever would choose another model or program, enable a script, or be a secret is refused at its place."""
    error = refused(tmp_path, served(lines))
    assert [problem["code"] for problem in error.data["problems"]] == [code]
    assert message in str(error)
    assert error.data["problems"][0]["line"] == 6


@pytest.mark.parametrize("flag", ["--max-num-batched-tokens", "--tokenizer-mode", "--attention-backend=fa"])
def test_flags_that_only_sound_like_secrets(tmp_path: Path, flag: str) -> None:
    """A word within a word is no secret."""
    launch = load_text(tmp_path, served(f"flags: [{flag}]")).entries[VDN].serve["sglang"]
    assert launch.flags == (flag,)


def test_an_unknown_server(tmp_path: Path) -> None:
    """Only servers that are known here have launch data."""
    error = refused(tmp_path, registry_text(f"  {VDN}:\n    serve:\n      tgi: {{flags: [--x]}}\n"))
    assert error.code == "unknown-server"
    assert "sglang, vllm-omni" in str(error)
