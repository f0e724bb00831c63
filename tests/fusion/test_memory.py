from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
from overlay.fusion.build import build_safetensors
from overlay.fusion.engine import Engine
from overlay.fusion.workers import Workers
from overlay.planning.outputs import Fused, Input, OutputTensor, Range, SafetensorsFile, Term

folder, rows, cols, rank = Path(sys.argv[1]), *map(int, sys.argv[2:])

def held(path, nbytes):
    with (folder / path).open("wb") as file:
        file.truncate(nbytes)
    return Range(Input("local", "local", path, nbytes, ""), 0, nbytes)

terms = tuple(
    Term(str(i), "A", "B", held(f"a{i}", rank * cols * 2), held(f"b{i}", rows * rank * 2), "BF16", rank, 1.0)
    for i in range(2)
)
weight = held("w", rows * cols * 2)
piece = Fused.whole(weight, "BF16", rows, cols, terms)
spec = SafetensorsFile("x", {}, (OutputTensor("w", "BF16", (rows, cols), (piece,)),))
with Workers(Engine.start("cpu"), 8, 2**30) as workers:
    build_safetensors(
        spec, folder / "out", open_input=lambda source: folder / source.path, workers=workers, rule="fp32-once"
    )
(folder / "out").unlink()
# ru_maxrss would count what the process that started this one held.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "cols", "rank"), [(96768, 2688, 16), (28672, 5376, 64), (1344, 14336, 512)])
def test_h19_peak_memory_does_not_depend_on_the_weight(tmp_path: Path, rows: int, cols: int, rank: int) -> None:
    """The release's largest weights, with eight workers, stay under 1 GiB of resident memory, torch included."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, str(rows), str(cols), str(rank)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) * 1024 < 2**30
