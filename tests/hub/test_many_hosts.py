"""Many hosts at a Hub that limits the rate, and how much one of them asks for."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from bench_many_hosts import Ask, asks_of, one_host
from hub_limit import LimitedHubServer
from support.checkpoints import tiny_hub
from support.hubs import add_repo, client_of, commit, shard
from support.models import VDN
from support.served import served

from overlay.hub import patience

if TYPE_CHECKING:
    from pathlib import Path

REPO = "org/base"
FILES = {"README.md": b"hello\n", "one.safetensors": shard("a"), "two.safetensors": shard("b", nbytes=200_000)}
HOSTS, MOST, SECOND = 12, 40, 0.001


def test_all_hosts_finish_under_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks for a listing, headers and files; they need several windows, and none fails."""
    add_repo(tmp_path / "hub", REPO, commit("a"), FILES)
    asks = [Ask(REPO, commit("a"))]
    asks += [Ask(REPO, commit("a"), path, 60) for path in FILES if path.endswith(".safetensors")]
    asks += [Ask(REPO, commit("a"), path) for path in FILES]
    with (
        LimitedHubServer(tmp_path / "hub", most=MOST, second=SECOND) as server,
        client_of(server, monkeypatch, tmp_path / "unused"),
        ThreadPoolExecutor(HOSTS) as pool,
    ):
        monkeypatch.setattr(patience, "SECOND", SECOND)
        failures = list(pool.map(lambda number: one_host(asks, tmp_path / f"host{number}"), range(HOSTS)))
        answers = Counter((request.method, request.status // 100) for request in server.asked())
    assert failures == [None] * HOSTS
    assert answers["GET", 2] == HOSTS * (1 + 2 + len(FILES))
    assert answers["HEAD", 2] >= HOSTS * len(FILES)  # asked again where the file itself was refused
    assert answers["GET", 4] + answers["HEAD", 4] > 0
    assert server.windows >= (answers["GET", 2] + answers["HEAD", 2]) / MOST
    for number in range(HOSTS):
        snapshot = tmp_path / f"host{number}/models--org--base/snapshots/{commit('a')}"
        assert (snapshot / "two.safetensors").read_bytes() == FILES["two.safetensors"]


def test_a_limited_server_counts_by_windows(tmp_path: Path) -> None:
    """So many requests pass, the next one is told when the window ends."""
    server = LimitedHubServer(tmp_path, most=2, window=300, second=1)
    with server:
        assert [server.strike("GET", "/x").status for _ in range(4)] == [None, None, 429, 429]
        assert 298 <= (server.strike("GET", "/x").retry_after or 0) <= 300


@pytest.mark.slow
def test_a_cold_prewarm_keeps_to_its_budget_of_requests(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A listing a repo, at most a look a weight file, two requests a file, and nothing twice."""
    from overlay.materialization.materialize import materialize

    with served(tiny_hub(tmp_path_factory), tmp_path) as world:
        materialize(VDN, world.options(server=None))
        requests = world.server.asked()
    asks = Counter(asks_of(requests))
    files = {(ask.repo, ask.path) for ask in asks if ask.path is not None and ask.nbytes is None}
    assert max(asks.values()) == 1
    assert sum(ask.path is None for ask in asks) == 3
    assert len({(ask.repo, ask.path) for ask in asks if ask.nbytes is not None}) == 12
    assert len(requests) <= 3 + 12 + 2 * len(files) <= 95
