"""The section ``serve``: what a server is started with, which changes no byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from support.registries import ENTRY, VDN, load_text, registry_text

from overlay.errors import InvalidRegistry
from overlay.registry import Launch
from overlay.registry.launch_fields import LaunchFields
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
    "another model": ("flags: [--x, --model_pa, acme]", "reserved-launch", "--model_pa"),
    "what the loader reads": ("env: {LD_PRELOAD: x.so}", "reserved-launch", "LD_PRELOAD"),
    "a secret flag": ("flags: [--api-key, hunter2]", "secret-in-registry", "--api-key"),
    "a line break in a flag": ('flags: ["--x\\nrm -rf /"]', "not-printable", "control characters"),
    "a lower-case variable": ("env: {path: x}", "bad-launch", "'path'"),
    "a variable that is none": ('env: {"A=B; rm": x}', "bad-launch", "'A=B; rm'"),
    "a token": ("env: {HF_TOKEN: hf_x}", "secret-in-registry", "HF_TOKEN"),
    "a key of a cloud": ("env: {AWS_SECRET_ACCESS_KEY: x}", "secret-in-registry", "AWS_SECRET_ACCESS_KEY"),
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


RESERVED_FLAGS = (
    *("--model-path", "--model", "--model=acme", "--model_path", "--model-pa=x", "--MODEL-PATH", "--mod", "--mode"),
    *("--model-id", "--revision", "--rev", "--code-revision", "--tokenizer", "--tok", "--lora-path", "--lora-modules"),
    *("--trust-remote-code", "--trust_remote_code", "--trust-remote-cod", "--trust-rem", "--tru", "--no-trust-x"),
    *("--config", "--con", "--config=x", "--cache-dit-config", "--stage-configs-pa", "--compilation-config.backend"),
    *("--vae-path", "--vae_pat", "--component-paths.vae", "--download-dir", "--pipeline-class-name", "--worker-cls"),
    *("--worker-extension-cls", "--tool-parser-plugin", "--tool-parser-plu", "--load-format", "--load-form"),
    *("--custom-pipeline-args", "--diffusers-load-kwargs", "--hf-overrides", "--logits-processors", "--middleware"),
    *("--chat-template", "--distributed-executor-backend", "--stage-overrides", "--quant-path", "--log-file"),
    *("--host", "--hos", "--port", "--master-port", "--pe-server-url", "--srt-encoder-u", "--dist-init-addr"),
    *("--", "-m", "-cc", "-O3", "--x y", "---model", "--\N{HYPHEN}model", "--.", "-1x"),
)


def why_not(**launch: Any) -> str:
    """What is said of launch data that are refused."""
    with pytest.raises(ValidationError) as caught:
        LaunchFields.model_validate(launch)
    [problem] = caught.value.errors()
    assert problem["ctx"]["code"] == "reserved-launch"
    return str(problem["ctx"]["message"])


@pytest.mark.parametrize("flag", RESERVED_FLAGS)
def test_flags_that_decide_what_is_loaded_run_or_read(flag: str) -> None:
    """Also with an underscore, in capitals, with a value joined, cut short, and behind a flag that is allowed."""
    for words in ([flag], ["--x", flag]) if flag.startswith("--") else (["--x", flag],):
        assert why_not(flags=words).startswith(f"{flag}: ")


TUNING_FLAGS = (
    *("--attention-backend", "--tp-size", "--sp-degree", "--num-gpus", "--dp", "--mode-x", "--performance-mode"),
    *("--enable-cfg-parallel", "--dit-cpu-offload", "--layerwise-offload-modules", "--use-fsdp-inference", "--omni"),
    *("--minimax-h3-adaln-host-cache-gb", "--enable-torch-compile", "--allow-cudnn-tf32", "--cache-backend", "--fps"),
    *("--disable-multithread-weight-load", "--vae-parallel-mode", "--component-precisions.vae", "--enforce-eager"),
)


@pytest.mark.parametrize("flag", TUNING_FLAGS)
def test_flags_that_tune(flag: str) -> None:
    """A registry may say how fast, on how many GPUs and by which backend."""
    words = (flag, "fa", "-1", "-0.5")
    assert LaunchFields.model_validate({"flags": words}).flags == words


@pytest.mark.parametrize("value", ["/etc/x", "acme/model", "~/y", "https://a", "a\\b"])
def test_no_value_names_a_place(value: str) -> None:
    """Whatever the flag or variable: no path, no repo, no URL."""
    for launch in ({"flags": ["--x", value]}, {"flags": [f"--x={value}"]}, {"env": {"SGLANG_X": value}}):
        assert "names a place" in why_not(**launch)


RESERVED_VARIABLES = (
    *("LD_PRELOAD", "PYTHONPATH", "PATH", "HOME", "TMPDIR", "GCONV_PATH", "PROMPT_COMMAND", "PS4", "PERL5OPT"),
    *("NODE_OPTIONS", "OPENSSL_CONF", "TORCH_EXTENSIONS_DIR", "CDPATH", "MALLOC_CONF", "CUDA_INJECTION64_PATH"),
    *("PYTORCH_X", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CC", "CXX"),
    *("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HOME", "HF_MODULES_CACHE", "HF_ANYTHING", "HTTPS_PROXY"),
    *("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", "SGLANG_DIFFUSION_CACHE_ROOT", "SGLANG_USE_MODELSCOPE"),
    *("SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_X", "SGLANG_DIFFUSION_NCCL_SO_PATH", "SGLANG_PLUGINS"),
    *("SGLANG_DIFFUSION_PLATFORM_OVERRIDE", "SGLANG_USE_PICKLE_IPC", "SGLANG_ZMQ_ALLOWED_PEERS", "SGLANG_CACHE_DIR"),
    *("SGLANG_TEST_SCRIPTED_RUNTIME_SYS_PATH_ENTRY", "SGLANG_WEIGHT_CACHE_SOCKET_TEMPLATE", "SGLANG_PATH"),
    *("VLLM_PLUGINS", "VLLM_USE_MODELSCOPE", "VLLM_CACHE_ROOT", "VLLM_NCCL_SO_PATH", "VLLM_SERVER_DEV_MODE"),
    *("VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_LOGGING_CONFIG_PATH"),
    *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_TOPO_FILE", "NCCL_COMM_ID", "NCCL"),
)


@pytest.mark.parametrize("name", RESERVED_VARIABLES)
def test_variables_that_decide_what_is_loaded_run_or_read(name: str) -> None:
    """Only variables that are known to tune are taken; all others are refused by name."""
    assert why_not(env={name: "x"}).startswith(f"{name}: ")


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_P2P_LEVEL", "NCCL_DEBUG"),
        *(
            "SGLANG_CACHE_DIT_ENABLED",
            "SGLANG_DIFFUSION_IPC_A2A",
            "VLLM_BATCH_INVARIANT",
            "DIFFUSION_ATTENTION_BACKEND",
        ),
    ],
)
def test_variables_that_tune(name: str) -> None:
    """Of the server, of NCCL, and a few of the libraries beneath."""
    assert LaunchFields.model_validate({"env": {name: "1"}}).env == {name: "1"}


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
