"""The numeric rules by name: which there are, which is meant where nobody says, and how a published record says it.

What each computes, to the last bit, is :mod:`overlay.fusion.rule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_RULE", "RULES", "SENTENCES", "check_rule"]

SENTENCES: Mapping[str, str] = {
    "fp32-once": "W += (alpha / rank) * B @ A, fp32 accumulate, one rounding to the stored dtype",
    "openvdn": "W += round((alpha / rank) * B @ A), each delta and each sum rounded to the stored dtype",
}
"""Each rule as the published materializer's own record words it."""

RULES = tuple(SENTENCES)
DEFAULT_RULE = "fp32-once"


def check_rule(rule: str) -> None:
    """Refuse a name that is no numeric rule.

    Raises:
        InvalidUsage: It is none.
    """
    if rule not in RULES:
        raise InvalidUsage(
            f"no rule {rule!r}, expected one of {', '.join(RULES)}",
            code="unknown-rule",
            hint=f"leave it out for {DEFAULT_RULE}",
            rule=rule,
        )
