"""Which paths sglang takes for the source of a model that it has an overlay for, release by release."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overlay.consumers.sglang.versions import Release

__all__ = ["source_at"]


def source_at(path: Path, models: Iterable[str], release: Release) -> str | None:
    """The model whose source a server would take this folder for; None: it is served as it is.

    A folder that is taken for a source is looked through for the source's files, and where these are missing the source
    is fetched and the model built from it.

    Args:
        path: Of a folder that exists, as ``--model-path`` names it; links are not followed.
        models: Those in the server's table, in its order.
        release: Decides how much of the path counts.
    """
    whole = os.path.normpath(path)
    parts = whole.lower().split("/")
    for model in models:
        if os.path.basename(whole) == model.rsplit("/", 1)[-1]:  # noqa: PTH119 - the server's text, not a path's part
            return model
        folder = f"models--{model.lower().replace('/', '--')}"
        if release.matches_paths == "anywhere" and folder in whole.lower():
            return model
        if release.matches_paths == "part" and folder in parts:
            return model
    return None
