"""Digests of a folder's files: taken before the plan, several at a time, and where people can see it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.checkpoints import copy_hub
from support.models import VDN, options

from overlay.fingerprint import DigestMemo, file_digest
from overlay.hub import take_inventory
from overlay.materialization.inputs import hash_ahead
from overlay.materialization.materialize import materialize, plan
from overlay.planning.recipes import files_to_digest, make_plan
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Built

    from overlay.hub import Inventory
    from overlay.materialization.request import Options


class Shown:
    """A phase that keeps what it was told."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}

    @contextmanager
    def __call__(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self.totals[label] = total
        counts: list[int] = []
        yield counts.append
        self.done[label] = sum(counts)


def inventory_of(chosen: Options, memo: DigestMemo) -> Inventory:
    resolution = resolve(VDN, load_registry(chosen.registry))
    return take_inventory(resolution, hub=chosen.hub, offline=True, memo=memo, allow_floating=False)


def test_all_that_a_plan_asks_for_is_hashed_before_it(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The total is that of the files, every byte is told, and the plan finds each digest known and right."""
    monkeypatch.setattr("overlay.fingerprint.memo._SETTLED_NS", 0)  # however young the files are
    memo, shown = DigestMemo(tmp_path / "digests"), Shown()
    inventory = inventory_of(built.options(), memo)
    files = [repo.local(path) for repo, path in files_to_digest(inventory, "fp32-once")]
    hash_ahead(inventory, "fp32-once", memo, shown)
    sizes = sum(path.stat().st_size for path in files if path is not None)
    assert shown.totals == shown.done == {"hash": sizes}

    monkeypatch.setattr(DigestMemo, "_compute", lambda *_args: pytest.fail("hashed in the plan"))
    made = make_plan(inventory, "fp32-once")
    for item in made.inputs():
        path = inventory.repos[item.repo].local(item.path)
        assert path is not None
        assert item.digest == file_digest(path, "sha256")
    again = Shown()
    hash_ahead(inventory, "fp32-once", memo, again)
    assert again.totals == {}


@pytest.mark.parametrize("run", [plan, materialize])
def test_a_run_and_a_dry_run_show_the_hashing(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, run: Callable[..., object]
) -> None:
    """Before anything else is shown."""
    shown = Shown()
    run(VDN, options(copy_hub(tmp_path_factory), tmp_path / "root"), phase=shown)
    assert next(iter(shown.totals)) == "hash"


def test_a_dry_run_of_what_is_published_says_so(built: Built) -> None:
    """And one of what is not, does not."""
    assert plan(VDN, built.options()).is_present
    assert not plan(VDN, built.options(rule="openvdn")).is_present
    assert not plan(VDN, built.options(only=("transformer",))).is_present
