"""NumPy is no dependency, so its absence is nothing to warn of."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import warnings

class NoNumpy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

sys.meta_path.insert(0, NoNumpy())
warnings.simplefilter("always")
before = list(warnings.filters)
{what}
assert "torch" in sys.modules
assert all(old in warnings.filters for old in before)
assert not any("NumPy" in str(new[1]) for new in warnings.filters)
"""
DOCTOR = "from overlay.cli._main import run; assert run(['doctor', '-q']) == 0"
DIFFERENCES = "from overlay.materialization.differences import _chunk_differences as d; d(b'ab', b'ac', 'U8')"


def without_numpy(what: str) -> str:
    """What a process that cannot import NumPy says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(what=what)], capture_output=True, text=True, check=True, timeout=100
    )
    return done.stderr


def test_torch_warns_by_itself() -> None:
    """Torch imported plainly complains, so the tests below can fail."""
    assert "Failed to initialize NumPy" in without_numpy("import torch")


def test_no_warning_from_any_import() -> None:
    """Whichever way torch comes in, nothing is said and the caller's warning filters are as they were."""
    for what in (DOCTOR, DIFFERENCES, "import overlay.fusion.engine"):
        assert without_numpy(what) == ""
