"""The rotary frequencies of a materialization."""

from __future__ import annotations

import hashlib
import struct

import pytest

from overlay.formats.layout import canonical_layout
from overlay.formats.rope import rope_inv_freq

pytestmark = pytest.mark.no_torch


def test_rope_file_of_the_release_is_the_published_one() -> None:
    """At 16 frequencies the file with this one tensor has the published digest."""
    header = canonical_layout([("rope.inv_freq", "F32", (16,))], {}).header
    digest = hashlib.sha256(header + rope_inv_freq(16)).hexdigest()
    assert digest == "46a93a8fea7b81ecd4ab1996b84cb1fde442f820cb27d26a5ae0b57d3d7f1dad"


@pytest.mark.parametrize("count", [1, 2, 8, 16, 21])
def test_frequencies_fall_from_one_by_equal_ratios(count: int) -> None:
    """Each frequency is the exact power of theta to within two roundings of float32."""
    values = struct.unpack(f"<{count}f", rope_inv_freq(count, theta=500.0))
    assert values[0] == 1.0
    assert values == pytest.approx([500.0 ** (-i / count) for i in range(count)], rel=2**-23)
