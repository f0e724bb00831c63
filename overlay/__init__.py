"""Resolve, check, fuse and prove model overlays.

The public functions are loaded on first use, so importing the package costs nothing::

    import overlay

    done = overlay.materialize("OpenVDN/vdn-minimax-h3", overlay.Options(cache_root=Path("/data/sgl_diffusion")))
    print(done.path)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlay.consumers.launch import Start
    from overlay.consumers.server import parse_server
    from overlay.errors import OverlayError
    from overlay.materialization.adoption.adopt import Adoption, adopt
    from overlay.materialization.compare import Comparison, compare
    from overlay.materialization.fuse import Fusion, fuse
    from overlay.materialization.lease import lease
    from overlay.materialization.materialize import Materialization, materialize, plan
    from overlay.materialization.request import Options
    from overlay.materialization.resolve import Resolved, resolve
    from overlay.materialization.serving.by_name import Staged, materialize_by_name
    from overlay.materialization.serving.dropping import Dropped, drop_source
    from overlay.materialization.serving.starting import start
    from overlay.materialization.sharing.pull import pull
    from overlay.materialization.sharing.push import Pushed, push
    from overlay.materialization.survey import Work
    from overlay.materialization.verify import Verification, verify

__version__ = "0.1.0"

_PLACES = {
    "Start": "overlay.consumers.launch",
    "parse_server": "overlay.consumers.server",
    "OverlayError": "overlay.errors",
    "Adoption": "overlay.materialization.adoption.adopt",
    "adopt": "overlay.materialization.adoption.adopt",
    "Comparison": "overlay.materialization.compare",
    "compare": "overlay.materialization.compare",
    "Fusion": "overlay.materialization.fuse",
    "fuse": "overlay.materialization.fuse",
    "lease": "overlay.materialization.lease",
    "Materialization": "overlay.materialization.materialize",
    "Resolved": "overlay.materialization.resolve",
    "materialize": "overlay.materialization.materialize",
    "plan": "overlay.materialization.materialize",
    "resolve": "overlay.materialization.resolve",
    "Options": "overlay.materialization.request",
    "Staged": "overlay.materialization.serving.by_name",
    "materialize_by_name": "overlay.materialization.serving.by_name",
    "Dropped": "overlay.materialization.serving.dropping",
    "drop_source": "overlay.materialization.serving.dropping",
    "start": "overlay.materialization.serving.starting",
    "pull": "overlay.materialization.sharing.pull",
    "Pushed": "overlay.materialization.sharing.push",
    "push": "overlay.materialization.sharing.push",
    "Work": "overlay.materialization.survey",
    "Verification": "overlay.materialization.verify",
    "verify": "overlay.materialization.verify",
}

__all__ = [
    "Adoption",
    "Comparison",
    "Dropped",
    "Fusion",
    "Materialization",
    "Options",
    "OverlayError",
    "Pushed",
    "Resolved",
    "Staged",
    "Start",
    "Verification",
    "Work",
    "adopt",
    "compare",
    "drop_source",
    "fuse",
    "lease",
    "materialize",
    "materialize_by_name",
    "parse_server",
    "plan",
    "pull",
    "push",
    "resolve",
    "start",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
