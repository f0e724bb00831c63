"""LoRA adapters in the layouts that people publish, checked against the base that they will be fused into."""

from overlay.formats.adapters.model import Adapter, Pair
from overlay.formats.adapters.model_spec import check_model_spec
from overlay.formats.adapters.read import read_adapter
from overlay.formats.adapters.stamps import Stamp, fused_adapters

__all__ = ["Adapter", "Pair", "Stamp", "check_model_spec", "fused_adapters", "read_adapter"]
