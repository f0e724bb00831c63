"""Running a part of a test as a user whom permissions bind: root may do everything."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOBODY = 65534


@contextmanager
def other_user() -> Iterator[None]:
    """Gives up root's rights for the block; a test that does not run as root keeps its own user.

    Folders of pytest are closed to other users: what the block touches must lie elsewhere, say in ``/tmp``.
    """
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
