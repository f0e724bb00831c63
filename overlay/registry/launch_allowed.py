"""Which flags, variables and fields of a request a registry may give, each by its full name, and with what value.

They are what a model can need to be served as it is meant. What a server loads, runs, writes, logs and listens to is
not among them, and is for whoever deploys it. Names are those of sglang 0.5.10 to 0.5.23 and vLLM-Omni 0.30; no value
can be a path, a URL, a repo or JSON: there is no value with a slash, a colon before anything but a setting of the
allocator, a quote or a space, and words have no dots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ALLOWED", "Allowed", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """What may stand behind a name.

    Attributes:
        said: In words.
        pattern: What each word of it is, whole; compiled when a registry has such a value, which few commands read.
        least: How many words at least.
        most: How many words at most; None for any number.
    """

    said: str
    pattern: str
    least: int = 1
    most: int | None = 1

    def fits(self, words: Sequence[str]) -> bool:
        """Whether words are such a value."""
        enough = self.least <= len(words) and (self.most is None or len(words) <= self.most)
        return enough and all(re.fullmatch(self.pattern, word) for word in words)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a registry may say to one server, by name."""

    flags: Mapping[str, Value]
    env: Mapping[str, Value]
    request: Mapping[str, Value]


def _table(*groups: tuple[Value, str]) -> Mapping[str, Value]:
    return {name: value for value, names in groups for name in names.split()}


_A_WORD = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_A_COUNT = "[0-9]{1,9}"
_A_NUMBER = r"-?[0-9]{1,9}(\.[0-9]{1,9})?"
# No text is both a word and a fraction, so that no list of pairs is tried in two to the power of its length ways.
_A_PAIR = rf"[a-z0-9_]{{1,64}}=({_A_WORD}|[0-9]{{1,9}}\.[0-9]{{1,9}})"

_SWITCH = Value("nothing", "", 0, 0)
_TRUTH = Value("nothing, true or false", "true|false", 0)
_BOOL = Value("true, false, 1 or 0", "true|false|1|0")
_COUNT = Value("a whole number", _A_COUNT)
_COUNTS = Value("whole numbers", _A_COUNT, most=None)
_STEPS = Value("whole numbers with commas between them", f"{_A_COUNT}(,{_A_COUNT}){{0,99}}")
_NUMBER = Value("a number", _A_NUMBER)
_WORD = Value("a word of letters, digits, _ and -", _A_WORD)
_WORDS = Value("words of letters, digits, _ and -", _A_WORD, most=None)
_PAIRS = Value("component=value, with commas between them", f"{_A_PAIR}(,{_A_PAIR}){{0,31}}")
_MANY_PAIRS = Value("component=value, each a word", _A_PAIR, most=None)
_RATIO = Value("a ratio like 16:9", "[0-9]{1,4}:[0-9]{1,4}")
_SETTING = "[a-z_]{1,64}:[A-Za-z0-9.]{1,32}"
_ALLOCATOR = Value("setting:value, with commas between them", f"{_SETTING}(,{_SETTING}){{0,15}}")

_COMPONENTS = ("transformer", "transformer_2", "vae", "text_encoder", "text_encoder_2", "image_encoder")

_SGLANG_FLAGS = _table(
    # The attention kernel: with another one, a model can be another model.
    (_WORD, "--attention-backend"),
    (_PAIRS, "--component-attention-backends"),
    # In which precision it computes, and what is quantized.
    (_WORD, "--dit-precision --vae-precision --vae-decode-precision --image-encoder-precision"),
    (_WORDS, "--text-encoder-precisions"),
    (_WORD, " ".join(f"--component-precisions.{component}" for component in _COMPONENTS)),
    (_WORD, "--quantization --kv-cache-quant"),
    (_TRUTH, "--disable-autocast --allow-cudnn-tf32 --allow-bf16-reduced-precision-reduction"),
    # The schedule and the guidance that it was trained for.
    (_NUMBER, "--flow-shift --embedded-cfg-scale"),
    (_STEPS, "--dmd-denoising-steps"),
    # Over how many GPUs it is spread, and how.
    (_COUNT, "--num-gpus --tp-size --sp-degree --ulysses-degree --ring-degree --kv-gather-degree --cfg-parallel-size"),
    (_COUNT, "--data-parallel-size --dp-size --hsdp-replicate-dim --hsdp-shard-dim"),
    (_TRUTH, "--enable-cfg-parallel --use-fsdp-inference"),
    (_WORD, "--encoder-parallel"),
    # What is compiled or captured, and for which shapes it is warmed.
    (_TRUTH, "--enable-torch-compile --regional-compile --offload-during-compile --enable-breakable-cuda-graph"),
    (_COUNTS, "--bcg-text-buckets"),
    (_WORD, "--warmup-mode"),
    (_WORDS, "--warmup-resolutions"),
    (_COUNT, "--warmup-num-frames --warmup-steps"),
    # What stays on the GPU, so that it fits.
    (_WORD, "--performance-mode --ltx2-two-stage-device-mode"),
    (_WORD, "--dit-layerwise-residency-policy --dit-layerwise-residency-lifetime"),
    (_TRUTH, "--dit-cpu-offload --text-encoder-cpu-offload --image-encoder-cpu-offload --vae-cpu-offload"),
    (_TRUTH, "--dit-layerwise-offload --pin-cpu-memory --minimax-h3-adaln-online"),
    (_WORDS, "--cpu-offload-components --layerwise-offload-components"),
    (_MANY_PAIRS, "--component-residency"),
    (_PAIRS, "--layerwise-prefetch-size --layerwise-resident-layers"),
    (_PAIRS, "--layerwise-residency-policy --layerwise-residency-lifetime"),
    (_NUMBER, "--dit-offload-prefetch-size --dit-layerwise-resident-layers --minimax-h3-adaln-host-cache-gb"),
    (_COUNT, "--minimax-h3-adaln-plan-width"),
    # In how many pieces the VAE decodes.
    (_TRUTH, "--vae-tiling --vae-slicing --vae-sp --diffusion-decoder-tiling --diffusion-decoder-parallel-tiling"),
    (_TRUTH, "--vae-config.use-tiling --vae-config.use-temporal-tiling --vae-config.use-parallel-tiling"),
    (_COUNT, "--vae-config.tile-sample-min-height --vae-config.tile-sample-min-width"),
    (_COUNT, "--vae-config.tile-sample-min-num-frames --vae-config.tile-sample-stride-num-frames"),
    (_COUNT, "--vae-config.tile-sample-stride-height --vae-config.tile-sample-stride-width"),
    (_COUNT, "--vae-config.blend-num-frames"),
)

_VLLM_OMNI_FLAGS = _table(
    # The attention kernel: with another one, a model can be another model.
    (_WORD, "--diffusion-attention-backend --attention-backend"),
    (_WORD, "--diffusion-attention-config.default.backend --diffusion-attention-config.per_role.self.backend"),
    (_WORD, "--diffusion-attention-config.per_role.cross.backend --diffusion-attention-config.per_role.joint.backend"),
    (_COUNT, "--fastvideo-vsa-topk"),
    (_SWITCH, "--fa-deterministic"),
    # In which precision it computes, and what is quantized.
    (_WORD, "--dtype --quantization --kv-cache-dtype --diffusion-kv-cache-dtype"),
    (_SWITCH, "--force-cutlass-fp8"),
    # The schedule that it was trained for, and which of its tasks is served.
    (_NUMBER, "--flow-shift --boundary-ratio"),
    (_WORD, "--task-type"),
    # Over how many GPUs it is spread, and how.
    (_COUNT, "--num-gpus --tensor-parallel-size --pipeline-parallel-size --data-parallel-size --cfg-parallel-size"),
    (_COUNT, "--ulysses-degree --ring-degree --allgather-degree --vae-patch-parallel-size --text-encoder-tp-size"),
    (_COUNT, "--hsdp-shard-size --hsdp-replicate-size"),
    (_SWITCH, "--use-hsdp --enable-expert-parallel --ulysses-a2a-permute --no-ulysses-a2a-permute"),
    (_WORD, "--ulysses-mode --vae-parallel-mode"),
    # What is compiled, and what is reused from step to step.
    (_SWITCH, "--enforce-eager --diffusion-compile-dynamic --no-diffusion-compile-dynamic"),
    (_WORD, "--diffusion-compile-granularity --cache-backend"),
    # What stays on the GPU and how long a sequence may be, so that it fits.
    (_SWITCH, "--enable-cpu-offload --enable-layerwise-offload --enable-distributed-layerwise-offload"),
    (_SWITCH, "--dlo-use-allgather --dlo-no-use-allgather"),
    (_COUNT, "--dlo-resident-layers --max-model-len --max-num-seqs --max-num-batched-tokens"),
    (_NUMBER, "--gpu-memory-utilization"),
    # In how many pieces the VAE decodes.
    (_SWITCH, "--vae-use-slicing --vae-use-tiling"),
    (_WORD, "--vae-fast-path"),
)

_COMMON_ENV = _table(
    # The allocator and the threads of the libraries beneath.
    (_ALLOCATOR, "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF"),
    (_COUNT, "OMP_NUM_THREADS CUDA_DEVICE_MAX_CONNECTIONS"),
    (_BOOL, "TORCHINDUCTOR_MAX_AUTOTUNE"),
)

_SGLANG_ENV = _table(
    # Kernels and backends of some models that have no flag.
    (_WORD, "SGLANG_DIFFUSION_COSMOS3_MULTIVIEW_ATTENTION_BACKEND SGLANG_DIFFUSION_FLUX3_NATTEN_BACKEND"),
    (_WORD, "SGLANG_DIFFUSION_CONVROT_INT8_BACKEND SGLANG_DIFFUSION_FLASHINFER_FP4_GEMM_BACKEND"),
    (_WORD, "SGLANG_DIFFUSION_VAE_CHANNELS_LAST_3D"),
    (_BOOL, "SGLANG_DIFFUSION_COSMOS3_LIDAR_USE_NATTEN SGLANG_DIFFUSION_ENABLE_MXFP8_ATTENTION"),
    (_BOOL, "SGLANG_DIFFUSION_ENABLE_W8A8_FP8_GEMM SGLANG_DIFFUSION_FP8_WEIGHT_DEQUANT_CACHE"),
    (_BOOL, "SGLANG_ENABLE_FUSED_QKNORM_ROPE SGLANG_DIFFUSION_MINIMAX_H3_ADALN_FP32"),
    (_BOOL, "MINIMAX_H3_VAE_DECODER_FUSED_NORM MINIMAX_H3_VAE_DECODER_VIT_FP32_NORM"),
    (_COUNT, "SGLANG_DIFFUSION_MXFP8_FA_HEAD_CHUNK_SIZE SGLANG_DIFFUSION_MINIMAX_H3_ADALN_GPU_PLANS"),
    # How GPUs exchange attention.
    (_BOOL, "SGLANG_DIFFUSION_IPC_A2A SGLANG_DIFFUSION_IPC_A2A_MULTI SGLANG_DIFFUSION_DISABLE_SP_PAD_MASK"),
    # What is reused from step to step.
    (_NUMBER, "SGLANG_DIFFUSION_CFG_GATE_STEP SGLANG_CACHE_DIT_RDT"),
    (_BOOL, "SGLANG_CACHE_DIT_ENABLED SGLANG_CACHE_DIT_TAYLORSEER"),
    (_COUNT, "SGLANG_CACHE_DIT_FN SGLANG_CACHE_DIT_BN SGLANG_CACHE_DIT_WARMUP"),
    (_COUNT, "SGLANG_CACHE_DIT_MC SGLANG_CACHE_DIT_TS_ORDER"),
    (_WORD, "SGLANG_CACHE_DIT_SCM_PRESET SGLANG_CACHE_DIT_SCM_POLICY"),
)

_VLLM_OMNI_ENV = _table(
    # Kernels and backends, where no flag says them.
    (_WORD, "DIFFUSION_ATTENTION_BACKEND DIFFUSION_CACHE_BACKEND"),
    (_BOOL, "VLLM_BATCH_INVARIANT VLLM_OMNI_USE_QUACK_FP8 VLLM_OMNI_SKIP_NVFP4_NAN_CLAMP FASTVIDEO_VSA_SM100A"),
    (_COUNT, "VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS"),
)

_REQUEST = _table(
    # What is made, and how large, for models that were trained for one shape.
    (_WORD, "task_type size"),
    (_RATIO, "aspect_ratio"),
    (_COUNT, "width height num_frames seconds max_sequence_length"),
    # The guidance and the schedule that it was trained for.
    (_NUMBER, "fps guidance_scale guidance_scale_2 true_cfg_scale flow_shift"),
)

ALLOWED: Mapping[str, Allowed] = {
    "sglang": Allowed(_SGLANG_FLAGS, {**_COMMON_ENV, **_SGLANG_ENV}, _REQUEST),
    "vllm-omni": Allowed(_VLLM_OMNI_FLAGS, {**_COMMON_ENV, **_VLLM_OMNI_ENV}, _REQUEST),
}
"""By name of the server."""
