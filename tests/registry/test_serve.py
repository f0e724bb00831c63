"""The section ``serve``: what a server is started with, which changes no byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.registries import ENTRY, VDN, load_text, registry_text

from overlay.errors import InvalidRegistry
from overlay.registry import Launch
from overlay.registry.entries import SERVERS
from overlay.registry.launch_allowed import ALLOWED
from overlay.registry.launch_fields import LaunchFields, launch_problems
from overlay.registry.lock import recipe_json

pytestmark = pytest.mark.no_torch

SERVE = """\
    serve:
      sglang:
        flags: [--attention-backend, fa, --vae-tiling]
        env: {OMP_NUM_THREADS: 8, SGLANG_CACHE_DIT_ENABLED: 1}
        request: {task_type: t2va}
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
        ("--attention-backend", "fa", "--vae-tiling"),
        {"OMP_NUM_THREADS": "8", "SGLANG_CACHE_DIT_ENABLED": "1"},
        {"task_type": "t2va"},
        9,
    )
    assert str(launch.place) == f"{tmp_path}/mine.yaml:5:7"
    [note] = registry.replaced[VDN]
    assert note.startswith(
        "serve sglang (--attention-backend fa --vae-tiling, OMP_NUM_THREADS=8, SGLANG_CACHE_DIT_ENABLED=1,"
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
    "an empty word": ('flags: [--vae-tiling, ""]', "bad-launch", "--vae-tiling"),
    "another flag": ("flags: [--vae-tiling, --model-path, acme]", "reserved-launch", "--model-path is not among"),
    "a line break in a flag": ('flags: ["--x\\nrm -rf /"]', "not-printable", "control characters"),
    "another variable": ("env: {LD_PRELOAD: x.so}", "reserved-launch", "LD_PRELOAD is not among"),
    "a variable that is none": ('env: {"A=B; rm": x}', "reserved-launch", "A=B; rm"),
    "a line break in a value": ('env: {A: "x\\ny"}', "not-printable", "control characters"),
    "another field": ("request: {output_path: x}", "reserved-launch", "output_path is not among"),
    "steps by a number of two meanings": ("request: {num_inference_steps: 9}", "reserved-launch", "grid points"),
    "one grid point": ("grid_points: 1", "bad-launch", "from 2 to 1000"),
    "endless grid points": (f"grid_points: {'9' * 5000}", "bad-launch", "from 2 to 1000"),
    "no number": ("grid_points: nine", "bad-launch", "'nine'"),
    "digits of another script": ("grid_points: \N{ARABIC-INDIC DIGIT NINE}", "bad-launch", "from 2 to 1000"),
}


@pytest.mark.parametrize(("lines", "code", "message"), CASES.values(), ids=CASES)
def test_what_may_not_stand_there(tmp_path: Path, lines: str, code: str, message: str) -> None:
    """Whatever is not on the list, or has no value of its kind, is refused at its place."""
    error = refused(tmp_path, served(lines))
    assert [problem["code"] for problem in error.data["problems"]] == [code]
    assert message in str(error)
    assert error.data["problems"][0]["line"] == 6


def test_each_is_refused_at_its_place(tmp_path: Path) -> None:
    """All of them together, each with its name, its line and what to do instead; no value of theirs is repeated."""
    entry = """\
      sglang:
        flags:
          - --webui
          - --uds
          - evil.sock
        env:
          SGLANG_CLOUD_STORAGE_TYPE: s3
          HF_TOKEN: hf_secret
        request:
          output_path: /evil
"""
    error = refused(tmp_path, registry_text(f"  {VDN}:\n    serve:\n{entry}"))
    found = {problem["line"]: problem for problem in error.data["problems"]}
    assert {line: problem["message"].split()[1] for line, problem in found.items()} == {
        7: "--webui",
        8: "--uds",
        11: "SGLANG_CLOUD_STORAGE_TYPE",
        12: "HF_TOKEN",
        14: "output_path",
    }
    assert found[7]["hint"].endswith("overlay env MODEL --for sglang -- FLAGS")
    assert "your own deployment" in found[11]["hint"]
    assert "your own requests" in found[14]["hint"]
    assert "evil" not in str(error)
    assert "hf_secret" not in str(error)


def codes(server: str = "sglang", **launch: Any) -> list[str]:
    """What is found wrong with launch data."""
    return [code for _, code, _, _ in launch_problems(server, LaunchFields.model_validate(launch))]


REFUSED_FLAGS = (
    *("--model-path", "--model", "--MODEL-PATH", "--model-id", "--revision", "--tokenizer", "--lora-path", "--config"),
    *("--trust-remote-code", "--trust_remote_code", "--trust-rem", "--load-format", "--vae-path", "--worker-cls"),
    *("--component-paths.vae", "--pipeline-class-name", "--custom-pipeline-args", "--hf-overrides", "--middleware"),
    *("--host", "--port", "--master-port", "--uds", "--webui", "--webui-port", "--encoder-urls", "--pe-server-url"),
    *("--enable-prompt-embeds", "--ignore-patterns", "--output-path", "--log-requests", "--otlp-traces-endpoint"),
    *("--api-key", "--download-dir", "--omni-master-address", "--no-guardrails", "--attention-backend-config"),
    *("--attention_backend", "--Attention-Backend", "--attention-back", "--no-vae-tiling", "--vae-tiling.x"),
    *("--", "---vae-tiling", "--vae-tiling ", "--\N{HYPHEN}vae-tiling", "--x y", "--."),
)
REFUSED_VARIABLES = (
    *("LD_PRELOAD", "PYTHONPATH", "PATH", "HOME", "TMPDIR", "CC", "CUDA_VISIBLE_DEVICES", "HTTPS_PROXY", "HF_HOME"),
    *("HF_TOKEN", "HF_HUB_OFFLINE", "AWS_SECRET_ACCESS_KEY", "TORCHINDUCTOR_CACHE_DIR", "NCCL_NET_PLUGIN", "NCCL_X"),
    *("SGLANG_CLOUD_STORAGE_TYPE", "SGLANG_S3_BUCKET_NAME", "SGLANG_S3_ENDPOINT_URL", "SGLANG_S3_REGION_NAME"),
    *("SGLANG_KERNEL_API_LOGDEST", "SGLANG_LOG_REQUEST_HEADERS", "SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_X"),
    *("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", "SGLANG_DIFFUSION_CACHE_ROOT", "SGLANG_DIFFUSION_NCCL_SO_PATH"),
    *("SGLANG_DIFFUSION_MINIMAX_H3_PDD_HEADS", "SGLANG_DIFFUSION_ATTENTION_CONFIG", "SGLANG_USE_MODELSCOPE"),
    *("VLLM_MEDIA_CONNECTOR", "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "VLLM_PLUGINS", "VLLM_CACHE_ROOT", "VLLM_X"),
    *("omp_num_threads", "OMP_NUM_THREADS ", "A=B"),
)


@pytest.mark.parametrize("server", SERVERS)
def test_nothing_else_is_given(server: str) -> None:
    """A flag or a variable is known by its full name, as it is written, or refused; its value changes nothing."""
    for flag in REFUSED_FLAGS:
        assert codes(server, flags=[flag, "x"]) == codes(server, flags=[f"{flag}=x"]) == ["reserved-launch"], flag
    for name in REFUSED_VARIABLES:
        assert codes(server, env={name: "1"}) == ["reserved-launch"], name


def test_what_one_server_knows_is_not_said_to_the_other() -> None:
    """The lists are those of a server each."""
    assert codes("sglang", flags=["--tp-size", "2"]) == codes("vllm-omni", flags=["--tensor-parallel-size", "2"]) == []
    assert codes("vllm-omni", flags=["--tp-size", "2"]) == ["reserved-launch"]
    assert codes("sglang", flags=["--tensor-parallel-size", "2"]) == ["reserved-launch"]
    assert codes("vllm-omni", env={"SGLANG_CACHE_DIT_ENABLED": "1"}) == ["reserved-launch"]


GOOD_FLAGS = (
    *("--attention-backend fa", "--attention-backend=fa", "--tp-size 2", "--vae-tiling", "--vae-tiling false"),
    *("--vae-tiling=true --tp-size 4", "--flow-shift -0.5", "--component-attention-backends text_encoder=torch_sdpa"),
    *("--warmup-resolutions 256x256 720x720", "--component-residency transformer=resident vae=component-offload"),
    *("--dmd-denoising-steps 1000,757,522", "--component-precisions.vae fp32", "--bcg-text-buckets 64 128"),
    "--layerwise-resident-layers transformer=0.5,vae=2",
)


@pytest.mark.parametrize("words", GOOD_FLAGS)
def test_flags_that_a_model_can_need(words: str) -> None:
    """With a value of their kind, behind them or joined."""
    assert codes(flags=words.split()) == []


BAD_FLAGS = (
    *("--attention-backend", "--attention-backend=", "--attention-backend a b", "--attention-backend a=b"),
    *("--attention-backend a.py", "--attention-backend acme/x", "--attention-backend -m", "--attention-backend $(id)"),
    *("--attention-backend `id`", "--attention-backend a;b", "--attention-backend ~", "--attention-backend a:80"),
    *("--attention-backend \N{CYRILLIC SMALL LETTER A}", f"--attention-backend {'a' * 65}", "--tp-size two"),
    *("--tp-size 2.5", "--tp-size -1", f"--tp-size {'9' * 10}", "--tp-size \N{ARABIC-INDIC DIGIT NINE}"),
    *("--vae-tiling yes", "--vae-tiling serve", "--vae-tiling=true x", "--bcg-text-buckets=1 2", "--bcg-text-buckets"),
    *("--component-residency a", "--component-residency a=b=c", "--component-residency a=b.yaml"),
    *(
        "--component-attention-backends a=b,",
        f"--component-attention-backends {'a=1,' * 31}a=1!",  # in two to the power of 31 ways, if a pattern had two
        "--component-attention-backends a=/b",
        "--flow-shift 1.",
        "--flow-shift nan",
    ),
)


@pytest.mark.parametrize("words", BAD_FLAGS)
def test_flags_with_another_value(words: str) -> None:
    """No place, no file, nothing that a shell expands, and no word that the server would take for something else."""
    assert codes(flags=words.split()) == ["bad-launch"]


@pytest.mark.parametrize(
    ("section", "name", "good", "bad"),
    [
        ("env", "OMP_NUM_THREADS", "8", "8;id"),
        ("env", "SGLANG_CACHE_DIT_ENABLED", "true", "yes"),
        ("env", "SGLANG_CACHE_DIT_RDT", "0.24", "x"),
        ("env", "SGLANG_DIFFUSION_FLUX3_NATTEN_BACKEND", "hopper-fna", "natten.py"),
        ("env", "PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512", "backend:/x.so"),
        ("request", "task_type", "t2va", "t2va x"),
        ("request", "aspect_ratio", "16:9", "16:9:1"),
        ("request", "width", "1280", "wide"),
        ("request", "flow_shift", "5.0", ""),
    ],
)
def test_values_of_variables_and_requests(section: str, name: str, good: str, bad: str) -> None:
    """Each is of its kind."""
    assert codes(**{section: {name: good}}) == []
    assert codes(**{section: {name: bad}}) == ["bad-launch"]


@pytest.mark.parametrize("server", SERVERS)
def test_the_page_lists_what_may_be_given(server: str) -> None:
    """The reference of the registry names all of it, and nothing else."""
    page = (Path(__file__).parents[2] / "docs/reference/registry.md").read_text()
    _, _, below = page.partition("## How servers are started")
    section = below.partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith((f"| {server} |", "| both |"))]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    allowed = ALLOWED[server]
    assert listed == {*allowed.flags, *allowed.env, *allowed.request}


def test_an_unknown_server(tmp_path: Path) -> None:
    """Only servers that are known here have launch data."""
    error = refused(tmp_path, registry_text(f"  {VDN}:\n    serve:\n      tgi: {{flags: [--x]}}\n"))
    assert error.code == "unknown-server"
    assert "sglang, vllm-omni" in str(error)
