"""Many hosts that pre-warm one model at the same time, from a Hub that limits the rate.

One cold ``overlay prewarm`` of the tiny checkpoint is run in earnest, without a limit, and its requests are written
down. Then every host makes these requests, through the program's own functions and the Hub's real client, each into a
cache of its own, against a server with the public limit. Time runs faster by one factor, on both sides. What a host
does between its requests is left out, and it asks for one file after the other, where the program asks for eight at
once.

    python tools/bench_many_hosts.py --hosts 200 --faster 10 --out many-hosts.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_machine import machine
from hub_limit import LimitedHubServer
from hub_server import API, RESOLVE, HubServer

from overlay.demo.checkpoint import SOURCE_REPO, HubFolder, write_hub
from overlay.demo.registry import write_registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_server import Request

__all__ = ["Ask", "asks_of", "one_host"]

MOST, WINDOW = 3000, 300.0  # the public limit of the Hub for files, by address


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a host wants of the Hub.

    Attributes:
        path: Of a file; None for the listing.
        nbytes: So many from its start; None for the whole file, which takes two requests.
    """

    repo: str
    commit: str
    path: str | None = None
    nbytes: int | None = None


def asks_of(requests: Sequence[Request]) -> list[Ask]:
    """What a run wanted, by the requests that it made."""
    asks = []
    for request in requests:
        if listing := API.fullmatch(request.path):
            asks.append(Ask(listing["repo"], listing["revision"]))
        elif file := RESOLVE.fullmatch(request.path):
            if request.range is not None:
                nbytes = int(request.range.partition("-")[2]) + 1
                asks.append(Ask(file["repo"], file["revision"], file["path"], nbytes))
            elif request.method == "HEAD":
                asks.append(Ask(file["repo"], file["revision"], file["path"]))
    return asks


def one_host(asks: Sequence[Ask], cache: Path) -> str | None:
    """Make all requests of a host; returns what failed."""
    from huggingface_hub import hf_hub_download

    from overlay.errors import OverlayError
    from overlay.hub import client
    from overlay.hub.explain import explained
    from overlay.hub.patience import patiently

    def whole(ask: Ask) -> None:
        with explained(ask.repo, ask.commit, ask.path):
            patiently(
                lambda: hf_hub_download(ask.repo, ask.path or "", revision=ask.commit, cache_dir=cache),
                stop=threading.Event(),
            )

    try:
        for ask in asks:
            if ask.path is None:
                client.list_tree(ask.repo, ask.commit)
            elif ask.nbytes is not None:
                client.read_range(ask.repo, ask.commit, ask.path, 0, ask.nbytes)
            else:
                whole(ask)
    except OverlayError as error:
        return f"{error.code}: {error.message}"
    return None


def _some_hosts(asks: Sequence[Ask], hosts: int, second: float) -> list[tuple[str | None, float]]:
    """What became of each of some hosts at once, in this process, and when it had ended."""
    from huggingface_hub.utils import disable_progress_bars, logging

    from overlay.hub import patience

    patience.SECOND = second
    disable_progress_bars()
    logging.set_verbosity_error()

    def host(_number: int) -> tuple[str | None, float]:
        cache = Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"]))
        found = one_host(asks, cache)
        shutil.rmtree(cache)
        return found, time.time()

    with ThreadPoolExecutor(hosts) as pool:
        return list(pool.map(host, range(hosts)))


def recorded(hub: HubFolder, work: Path) -> list[Request]:
    """The requests of one cold pre-warm."""
    registry = work / "registry.yaml"
    write_registry(registry, hub)
    command = [sys.executable, "-m", "overlay", "prewarm", SOURCE_REPO, "--quiet", "--registry", str(registry)]
    with HubServer(hub.root) as server:
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(work / "hf")}
        subprocess.run([*command, "--cache-root", str(work / "root")], env=environment, check=True)  # noqa: S603  # ours
        return server.asked()


def measure(hosts: int, faster: float, processes: int, work: Path) -> dict[str, object]:
    """The whole run."""
    hub = write_hub(work / "hub", blocks=1)
    requests = recorded(hub, work)
    asks, second = asks_of(requests), 1 / faster
    shares = [hosts // processes + (number < hosts % processes) for number in range(processes)]
    with LimitedHubServer(hub.root, most=MOST, window=WINDOW, second=second) as server:
        os.environ |= {"HF_ENDPOINT": server.url, "HF_HOME": str(work / "hosts"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        (work / "hosts").mkdir()
        started = time.time()
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(_some_hosts, asks, share, second) for share in shares]
            ends = [end for share in running for end in share.result()]
        wall = time.time() - started
        statuses = Counter(request.status for request in server.asked())
    seconds = sorted((ended - started) * faster for _, ended in ends)
    marks = {"first": seconds[0], "median": seconds[hosts // 2], "last": seconds[-1]}
    failures = [failure for failure, _ in ends if failure is not None]
    return {
        "hosts": hosts,
        "limit": f"{MOST} requests in {WINDOW:.0f} s",
        "faster": faster,
        "requests_of_one_prewarm": dict(Counter(_kind(request) for request in requests)),
        "requests": sum(statuses.values()),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "windows": server.windows,
        "least_windows": -(-hosts * len(requests) // MOST),
        "wall_seconds": round(wall, 1),
        "simulated_seconds": {name: round(value) for name, value in marks.items()},
        "failures": len(failures),
        "failed": sorted(set(failures)),
    }


def _kind(request: Request) -> str:
    if API.fullmatch(request.path):
        return "listing"
    return "header" if request.range is not None else f"{request.method} of a file"


def main() -> int:
    """Run it, print the result and write it; status 1 if a host failed."""
    parser = argparse.ArgumentParser(description="Many hosts at a Hub that limits the rate.")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--faster", type=float, default=10.0, help="how much faster time runs")
    parser.add_argument("--processes", type=int, default=4, help="processes that the hosts are spread over, as threads")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-hosts-") as work:
        found = measure(options.hosts, options.faster, options.processes, Path(work))
    command = f"python tools/bench_many_hosts.py --hosts {options.hosts} --faster {options.faster:g}"
    text = json.dumps({"machine": machine(), "command": command, **found}, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
