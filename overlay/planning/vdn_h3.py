"""Recipe ``vdn-h3``: base, linear branch and adapters of a VDN-H3 stage to the tree that SGLang and vLLM-Omni load.

The tree is the one that the published overlay's materializer builds, byte for byte in the transformer shards, the VAE,
the rope file and the JSON files; ``docs/reference/formats.md`` describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, InvalidRegistry
from overlay.formats.adapters import check_model_spec
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.materialized import PREFUSED_NAME
from overlay.formats.rope import rope_inv_freq
from overlay.formats.strict_json import dump_json, parse_object
from overlay.formats.vdn import read_linear_branch
from overlay.formats.wording import some
from overlay.planning.carry import carry_folder, overlay_own_files
from overlay.planning.fuse import adapter_uses, base_tensors, fuse_checkpoint, read_adapters, refuse_fused_twice
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, Literal, OutputTensor, SafetensorsFile
from overlay.planning.plan import finish, overlaid
from overlay.planning.sources import Outcome
from overlay.planning.vdn_provenance import branch_provenance, provenance
from overlay.planning.video_vae import relaid_video_vae

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.formats.checkpoint import Checkpoint
    from overlay.planning.fuse import AdapterSource
    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook
    from overlay.planning.sources import Sources
    from overlay.registry import Entry

__all__ = ["BASE", "BASE_FOLDERS", "COMPONENTS", "ROPE_TENSOR", "STAGES", "needed_files", "small_files", "vdn_h3"]

STAGES: Mapping[str, tuple[str, ...]] = {
    "stage-dmd-step-250": ("default", "turbo"),
    "stage-b-step-2000": ("default",),
}
BASE = "h3-base"
BASE_FOLDERS = ("transformer", "vae", "audio_vae")
"""Folders of ``BASE`` that are fused or re-laid."""
COMPONENTS = ("transformer", "video_vae", "audio_vae")
"""What is made of the source; the rest is carried from the needs."""
BRANCH_FILE = "sglang_vdn_linear_branch.safetensors"
ROPE_FILE = "sglang_rope_inv_freq.safetensors"
ROPE_TENSOR = "rope.inv_freq"
_MOST = 10_000  # heads, their dimensions, frequencies


def vdn_h3(entry: Entry, sources: Sources, rule: str) -> Outcome:
    """The recipe's option ``stage`` is the folder of the stage in the source.

    The secondary repos hold the components that are carried: text_encoder, tokenizer, processor.

    Raises:
        InvalidRegistry: The stage is not one that this recipe knows.
        BrokenInput: An input is not what the recipe needs.
    """
    model, source, stage = entry.model, sources.source, str(entry.recipe.options["stage"])
    if stage not in STAGES:
        raise InvalidRegistry(
            f"{model}: recipe vdn-h3 has no stage {stage!r}",
            code="unknown-stage",
            hint=f"stage is one of {', '.join(STAGES)}",
            stage=stage,
        )
    transformer = read_checkpoint(source.files, f"{BASE}/transformer")
    adapters = read_adapters(
        [(source, f"{stage}/adapters/{name}", name) for name in STAGES[stage]], base_tensors(transformer)
    )
    _check_kinds(source, adapters)
    check_model_spec(source.files, stage, [adapter for _, adapter in adapters])
    refuse_fused_twice(source.files, f"{BASE}/transformer", adapters)
    carried = [(sources.needs[need.pin.repo], component) for need in entry.needs for component in need.components]
    made = [
        *(output for book, component in carried for output in carry_folder(book, component, component)),
        *_video_vae(source),
        *fuse_checkpoint(source, transformer, adapters, "transformer"),
        *_transformer_extras(model, source, stage, transformer, adapters, rule),
    ]
    outputs = overlaid(
        overlay_own_files(sources.overlay),
        carry_folder(source, f"{BASE}/audio_vae", "audio_vae"),
        _configs(source),
        finish(made, model),  # no shard may go by the name of a file that is made
    )
    return Outcome(list(outputs), adapter_uses(adapters), tuple(source(path) for path in small_files(stage)))


def small_files(stage: str) -> tuple[str, ...]:
    """Files of the source that shape the tree by their content, by name; the adapters' own not among them."""
    configs = (f"{BASE}/{component}/config.json" for component in BASE_FOLDERS)
    return (f"{stage}/metadata.json", f"{stage}/linear_branch/config.json", *configs)


def needed_files(stage: str) -> tuple[str, ...]:
    """Files of the source that the recipe reads by name; the adapters' own not among them."""
    return (*small_files(stage), f"{stage}/linear_branch/model.safetensors") if stage in STAGES else ()


def _check_kinds(source: InputBook, adapters: Sequence[AdapterSource]) -> None:
    for _, adapter in adapters:
        if adapter.kind != "openvdn" or adapter.spec is None:
            raise BrokenInput(
                f"{source.files.where(adapter.weights)}: is a {adapter.kind} adapter; expected an OpenVDN one",
                code="adapter-kind",
                hint="the recipe lora takes adapters of every kind",
                adapter=adapter.name,
                kind=adapter.kind,
            )


def _json(book: InputBook, path: str) -> dict[str, Any]:
    return parse_object(book.files.read_bytes(path), book.files.where(path))


def _count(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value <= _MOST:
        raise BrokenInput(
            f"{where}: {key} is {str(value)[:80]}; expected a positive integer up to {_MOST}",
            code="config-value",
            key=key,
        )
    return value


def _index_metadata(index: Mapping[str, Any], where: str) -> dict[str, Any]:
    metadata = index.get("metadata") or {}
    if not isinstance(metadata, dict) or type(metadata.get("total_size", 0)) not in (int, float):
        raise BrokenInput(
            f"{where}: metadata is {str(metadata)[:80]}; expected an object whose total_size is a number of bytes",
            code="bad-index",
            hint="download the index again",
            where=where,
        )
    return dict(metadata)


def _video_vae(source: InputBook) -> list[OutputFile]:
    folder = f"{BASE}/vae"
    config = _json(source, f"{folder}/config.json")
    where = source.files.where(f"{folder}/config.json")
    vae = relaid_video_vae(
        source,
        read_checkpoint(source.files, folder),
        num_heads=_count(config, "decoder_num_attention_heads", where),
        head_dim=_count(config, "decoder_attention_head_dim", where),
        out_path="video_vae/source/model.safetensors",
    )
    return [vae, AliasFile("video_vae/model.safetensors", vae.path)]


def _configs(source: InputBook) -> list[OutputFile]:
    classes = {
        "video_vae": (f"{BASE}/vae/config.json", "MiniMaxH3VideoVAE"),
        "audio_vae": (f"{BASE}/audio_vae/config.json", "MiniMaxH3AudioVAE"),
    }
    return [
        GeneratedFile(f"{component}/config.json", dump_json({**_json(source, path), "_class_name": class_name}))
        for component, (path, class_name) in classes.items()
    ]


def _transformer_extras(
    model: str,
    source: InputBook,
    stage: str,
    transformer: Checkpoint,
    adapters: Sequence[AdapterSource],
    rule: str,
) -> list[OutputFile]:
    branch_path = f"{stage}/linear_branch/model.safetensors"
    branch = source.files.header(branch_path)
    branch_config = read_linear_branch(source.files, f"{stage}/linear_branch/config.json")
    # Base, branch and the rope file share one index.
    collisions = sorted(branch.tensors.keys() & {*transformer.weight_map, ROPE_TENSOR})
    collisions += [ROPE_TENSOR] if ROPE_TENSOR in transformer.weight_map else []
    if collisions:
        raise BrokenInput(
            f"{source.files.where(branch_path)}: base, linear branch and rope file have tensors of one name:"
            f" {some(collisions)}",
            code="tensor-collision",
            hint="use base and branch as they were published, all files of one commit",
            tensors=collisions[:10],
        )
    config_path = f"{BASE}/transformer/config.json"
    config = _json(source, config_path)
    rope = rope_inv_freq(_count(config, "rope_freq_dim", source.files.where(config_path)))
    rope_tensor = OutputTensor(ROPE_TENSOR, "F32", (len(rope) // 4,), (Literal(rope),))
    said = branch_provenance(source, branch_path, BRANCH_FILE, len(branch.tensors), branch_config)
    record = provenance(model, stage, rule, source, [adapter for _, adapter in adapters], said)
    outputs: list[OutputFile] = [
        CarriedFile(f"transformer/{BRANCH_FILE}", source(branch_path)),
        SafetensorsFile(f"transformer/{ROPE_FILE}", {}, (rope_tensor,)),
        GeneratedFile("transformer/config.json", dump_json({**config, "hybrid_attention": branch_config["config"]})),
        GeneratedFile(f"transformer/{PREFUSED_NAME}", dump_json(record)),
    ]
    if transformer.index is not None and transformer.index_json is not None:
        index_name = transformer.index.rpartition("/")[2]
        metadata = _index_metadata(transformer.index_json, source.files.where(transformer.index))
        metadata["total_size"] = metadata.get("total_size", 0) + branch.file_size
        weight_map = {
            **transformer.weight_map,
            **dict.fromkeys(branch.tensors, BRANCH_FILE),
            ROPE_TENSOR: ROPE_FILE,
        }
        outputs.append(
            GeneratedFile(f"transformer/{index_name}", dump_json({"metadata": metadata, "weight_map": weight_map}))
        )
    return outputs
