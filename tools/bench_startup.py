"""How long the commands take that people type most: median of several runs, in milliseconds.

``python tools/bench_startup.py [RUNS]``. The target is 400 ms on the machine that runs the tests. ``resolve`` runs
against an empty cache root with the packaged registry.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

MODEL = "OpenVDN/vdn-minimax-h3"
COMMANDS = (["--version"], ["--help"], ["resolve", "--help"], ["resolve", MODEL], ["path", MODEL], ["cache", "ls"])
TARGET_MS = 400


def milliseconds(args: list[str], environ: dict[str, str]) -> float:
    """One run, from start to exit."""
    started = time.perf_counter()
    subprocess.run(  # noqa: S603  # this project's own program
        [sys.executable, "-m", "overlay", *args], env=environ, capture_output=True, check=False
    )
    return (time.perf_counter() - started) * 1000


def main() -> None:
    """Print one line a command."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as root:
        environ = {**os.environ, "OVERLAY_CACHE_ROOT": root}
        for args in COMMANDS:
            milliseconds(args, environ)  # warms the page cache and the bytecode
            times = [milliseconds(args, environ) for _ in range(runs)]
            median = statistics.median(times)
            verdict = "" if median <= TARGET_MS else f"   over {TARGET_MS} ms"
            print(f"{median:6.0f} ms  (min {min(times):.0f}, max {max(times):.0f})  overlay {' '.join(args)}{verdict}")


if __name__ == "__main__":
    main()
