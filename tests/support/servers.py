"""The released servers that ``make test-slow`` fetched, one folder each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fetch_servers import WHEELS, is_there

__all__ = ["SGLANG_RELEASES", "unpacked"]

_ROOT = Path(__file__).parents[2]
# Read when a test file is collected: tests themselves see no OVERLAY_ variable.
_FOLDER = Path(os.environ.get("OVERLAY_SERVERS") or _ROOT / ".servers").absolute()

SGLANG_RELEASES = tuple(wheel.version for wheel in WHEELS if wheel.name == "sglang")


def unpacked(name: str, version: str) -> Path:
    """The folder of a release's modules, to be put on ``sys.path`` of a child; fails the test where it is missing."""
    wheel = next(wheel for wheel in WHEELS if (wheel.name, wheel.version) == (name, version))
    if not is_there(wheel, _FOLDER):
        pytest.fail(
            f"{_FOLDER / wheel.folder} is missing or outdated. Run `python tools/fetch_servers.py {_FOLDER}`"
            " (or let OVERLAY_SERVERS name a folder that has it)."
        )
    return _FOLDER / wheel.folder
