"""The overlays that sglang has built in, release by release, as the released wheels have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.consumers.sglang.versions import NEWEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.consumers.server import Version

__all__ = ["BUILT_IN", "BuiltIn", "built_in"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One row of a built-in table.

    Attributes:
        source_revision: Enters the key; None where the server takes whatever is on main.
    """

    overlay_repo_id: str
    overlay_revision: str
    source_revision: str | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row and the releases that have it, the first and the last."""

    model: str
    row: BuiltIn
    since: Version
    until: Version | None = None


_ROWS = (
    _Row(
        "Lightricks/LTX-2.3", BuiltIn("MickJ/LTX-2.3-overlay", "e0cc94f279ec16bb87c230134d40319f6ce40c5e"), (0, 5, 11)
    ),
    _Row(
        "Efficient-Large-Model/SANA-WM_bidirectional",
        BuiltIn("sjmshsh/SANA-WM_bidirectional-overlay", "e611beacbcc0cf33c676306ae0eb89f149e044ad"),
        (0, 5, 13),
    ),
    _Row(
        "Efficient-Large-Model/SANA-WM_streaming",
        BuiltIn("AgainstEntropy/SANA-WM_streaming-overlay", "62c6840871ecc3559189047513ba0670e1bf62e7"),
        (0, 5, 13),
    ),
    _Row(
        "jdopensource/JoyAI-Echo",
        BuiltIn("Niehen6174/JoyAI-Echo-overlay", "0a19f315c96532b7a5f61bcd765d1fefdd83dc7d"),
        (0, 5, 15),
        (0, 5, 21),
    ),
    _Row(
        "jdopensource/JoyAI-Echo",
        BuiltIn(
            "Niehen6174/JoyAI-Echo-overlay",
            "0a19f315c96532b7a5f61bcd765d1fefdd83dc7d",
            "4187f9a53c6eff3a76c51e79bd27f70d10f7591b",
        ),
        (0, 5, 22),
    ),
    _Row(
        "FastVideo/FastVideo-FastH3-4-step-Preview-v1-VSA-DataFree",
        BuiltIn("kevin-mi/FastH3-4step-Preview-overlay", "f769cb8001dae335089de7b250364335bc7cb183"),
        (0, 5, 20),
        (0, 5, 21),
    ),
    _Row(
        "OpenVDN/vdn-minimax-h3",
        BuiltIn("kevin-mi/VDN-H3-overlay", "7de18275dddfe59da36a234e222bcdd274963bc3"),
        (0, 5, 20),
    ),
    _Row(
        "FastVideo/FastVideo-FastH3-8-Step-V2",
        BuiltIn("kevin-mi/FastH3-8step-V2-overlay", "308e2dd627218c40ae759a93745429800771a625"),
        (0, 5, 22),
    ),
    _Row(
        "tencent/Hy-Nomas",
        BuiltIn(
            "Niehen6174/Hy-Nomas-overlay",
            "14088cc131c66fb7265cefbf99276428ccd5a957",
            "dea948068220d1037f1d1c10b95b6793d92bee28",
        ),
        (0, 5, 23),
    ),
    _Row(
        "FastVideo/FastVideo-FastH3-Omni-8-Step-V1",
        BuiltIn(
            "Niehen6174/FastH3-Omni-overlay",
            "953ede55daf20a70cc6f0b59464293e2f408608c",
            "53e0d26a1691aa473b6262d8196a8feb2c297df0",
        ),
        (0, 5, 23),
    ),
)


def built_in(version: Version) -> Mapping[str, BuiltIn]:
    """The table of a release, by model; of a newer one than was looked at, that of the newest."""
    at = min(version, NEWEST)
    return {item.model: item.row for item in _ROWS if item.since <= at and (item.until is None or at <= item.until)}


BUILT_IN = built_in(NEWEST)
"""The newest table."""
