"""Small bases and adapters for tests: headers that matter, payloads of zeros."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from support.tensors import Tensor, write_tensors

from overlay.formats.adapters import Adapter, read_adapter
from overlay.formats.files import Folder
from overlay.formats.header import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "U8": 1, "I64": 8}

IN, OUT, RANK = 4, 6, 2


def zeros(*shape: int, dtype: str = "BF16") -> Tensor:
    """A tensor of zeros."""
    return dtype, list(shape), bytes(_BYTES[dtype] * math.prod(shape))


def infos(shapes: Mapping[str, Sequence[int]], dtype: str = "BF16") -> dict[str, TensorInfo]:
    """A base by shapes alone."""
    return {name: TensorInfo(name, dtype, tuple(shape), 0, 0) for name, shape in shapes.items()}


def block_base(num_blocks: int = 2) -> dict[str, TensorInfo]:
    """A base like the real one: attention blocks with norms and biases, a refiner, a convolution, a projection."""
    shapes: dict[str, Sequence[int]] = {
        "proj_out.weight": (3, IN),
        "proj_out.bias": (3,),
        "conv.weight": (OUT, IN, 1, 1),
    }
    for prefix in [f"blocks.{i}" for i in range(num_blocks)] + ["refiner.0"]:
        shapes |= {f"{prefix}.attn.to_{part}.weight": (OUT, IN) for part in "qk"}
        shapes |= {f"{prefix}.attn.to_q.bias": (OUT,), f"{prefix}.norm.weight": (IN,)}
    return infos(shapes)


def pair(
    module: str,
    key: str = "{module}.lora_{half}.weight",
    *,
    rank: int = RANK,
    dtype: str = "BF16",
    out: int = OUT,
    cols: int = IN,
) -> dict[str, Tensor]:
    """The two tensors of one module."""
    return {
        key.format(module=module, half="A"): zeros(rank, cols, dtype=dtype),
        key.format(module=module, half="B"): zeros(out, rank, dtype=dtype),
    }


def pairs(modules: Iterable[str], **options: Any) -> dict[str, Tensor]:
    """The tensors of several modules."""
    return {name: tensor for module in modules for name, tensor in pair(module, **options).items()}


def kohya(module: str, alpha: Tensor | None = None, rank: int = RANK) -> dict[str, Tensor]:
    """The tensors of one module as kohya's trainers write them."""
    tensors = {f"{module}.lora_down.weight": zeros(rank, IN), f"{module}.lora_up.weight": zeros(OUT, rank)}
    return tensors if alpha is None else {f"{module}.alpha": alpha, **tensors}


def openvdn_spec(targets: Iterable[str], **config: Any) -> dict[str, Any]:
    """An OpenVDN spec."""
    return {"type": "lora", "version": 1, "config": {"rank": RANK, "alpha": RANK, "targets": list(targets), **config}}


def peft_config(targets: Iterable[str] | str, **fields: Any) -> dict[str, Any]:
    """A PEFT config as PEFT 0.21 saves it."""
    return {
        "alora_invocation_tokens": None,
        "alpha_pattern": {},
        "arrow_config": None,
        "auto_mapping": None,
        "base_model_name_or_path": "org/base",
        "bias": "none",
        "corda_config": None,
        "ensure_weight_tying": False,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "kasa_config": None,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": RANK,
        "lora_bias": False,
        "lora_dropout": 0.0,
        "lora_ga_config": None,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "monteclora_config": None,
        "peft_type": "LORA",
        "peft_version": "0.21.2",
        "qalora_group_size": 16,
        "r": RANK,
        "rank_pattern": {},
        "revision": None,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "target_parameters": None,
        "task_type": None,
        "trainable_token_indices": None,
        "use_bdlora": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
        "velora_config": None,
        **fields,
    }


def write_adapter(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    file: str = "adapter_model.safetensors",
    **documents: Any,
) -> Path:
    """Writes weights and JSON documents: ``spec=`` and ``config=``, objects or the text itself."""
    write_tensors(folder / file, tensors, metadata)
    for name, document in documents.items():
        text = document if isinstance(document, str) else json.dumps(document)
        (folder / f"adapter_{name}.json").write_text(text)
    return folder


def read(folder: Path, base: Mapping[str, TensorInfo] | None = None, path: str = "", **options: Any) -> Adapter:
    """Reads the adapter in a folder against a base, ``block_base`` unless told."""
    return read_adapter(Folder(folder), path, block_base() if base is None else base, **options)
