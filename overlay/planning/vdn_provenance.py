"""What the published VDN-H3 materializer writes beside the shards of what it fused, key for key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.formats.strict_json import parse_object
from overlay.formats.vdn import read_stage_metadata
from overlay.planning.fuse import sha256_of
from overlay.planning.rules import SENTENCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.formats.adapters import Adapter
    from overlay.planning.plan import InputBook

__all__ = ["branch_provenance", "provenance"]


def provenance(
    model: str,
    stage: str,
    rule: str,
    source: InputBook,
    adapters: Sequence[Adapter],
    branch: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole document.

    Args:
        stage: Folder of the stage in the source.
        adapters: In the order of fusing, each with the OpenVDN spec beside it.
        branch: What the record says of the linear branch.
    """
    return {
        "source_model_id": model,
        "vdn_checkpoint": stage,
        "checkpoint_metadata": read_stage_metadata(source.files, f"{stage}/metadata.json"),
        "merge": {
            "rule": SENTENCES[rule],
            "order": [adapter.name for adapter in adapters],
            "pairs_merged": sum(len(adapter.pairs) for adapter in adapters),
            "tensors_touched": len({pair.target for adapter in adapters for pair in adapter.pairs}),
        },
        "adapters": [_adapter(source, adapter, adapter.spec) for adapter in adapters if adapter.spec is not None],
        "linear_branch": dict(branch),
    }


def branch_provenance(
    source: InputBook, path: str, file_name: str, num_tensors: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """What the record says of the linear branch."""
    return {"file": file_name, "tensors": num_tensors, "sha256": _sha256(source, path), "config": dict(config)}


def _adapter(source: InputBook, adapter: Adapter, spec: str) -> dict[str, Any]:
    config = parse_object(source.files.read_bytes(spec), source.files.where(spec))["config"]
    return {
        "name": adapter.name,
        "path": adapter.weights.rpartition("/")[0],
        "pairs": len(adapter.pairs),
        "rank": config["rank"],
        "alpha": config["alpha"],
        "rank_pattern_modules": len(config.get("rank_pattern") or {}),
        "scales": sorted({pair.scale for pair in adapter.pairs}),
        "adapter_model_sha256": _sha256(source, adapter.weights),
        "adapter_config_sha256": _sha256(source, spec),
    }


def _sha256(book: InputBook, path: str) -> str:
    return sha256_of(book, path).removeprefix("sha256:")
