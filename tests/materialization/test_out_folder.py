"""The new folder of a fuse, where the work in it fails."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from overlay.errors import CannotWrite
from overlay.materialization.out_folder import new_folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOMEM, OSError), (errno.EIO, CannotWrite)])
def test_a_lack_of_memory_is_no_fault_of_the_folder(tmp_path: Path, number: int, kind: type[OSError]) -> None:
    """Another --out would not help; and nothing is left either way."""
    with pytest.raises(OSError) as caught, new_folder(tmp_path / "out", 0):  # noqa: PT011  # its kind is what is tested
        raise OSError(number, os.strerror(number))

    assert type(caught.value) is kind
    assert list(tmp_path.iterdir()) == []
