"""Which files of a repo say under what terms it may be used."""

from __future__ import annotations

import re

from overlay.formats.files import MAX_CHECKED_FILE, PICKLES

__all__ = ["LICENSES_FOLDER", "MAX_LICENSE_FILE", "is_license"]

LICENSES_FOLDER = "licenses"
"""Where a tree has those of every repo that took part: ``licenses/<org>__<name>/<file>``."""

MAX_LICENSE_FILE = MAX_CHECKED_FILE
"""Bytes at most; what is larger is no text that somebody wrote."""

_NAME = re.compile(r"(LICEN[SC]ES?|NOTICES?|COPYING|USE_POLICY)([^A-Z].*)?", re.IGNORECASE)
_NO_TEXTS = (*PICKLES, ".safetensors", ".py")


def is_license(path: str) -> bool:
    """Whether a file is by its name a licence or what belongs to one."""
    name = path.rpartition("/")[2]
    return _NAME.fullmatch(name) is not None and not name.lower().endswith(_NO_TEXTS)
