from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from support.fuse_files import Store, data_of, random_weight

from overlay.errors import InvalidUsage
from overlay.fusion import engine as engine_module
from overlay.fusion.engine import Engine
from overlay.fusion.library import Library
from overlay.fusion.settings import full_precision

if TYPE_CHECKING:
    import random
    from pathlib import Path


def test_a_build_leaves_torch_as_it_was(engine: Engine, tmp_path: Path, dice: random.Random) -> None:
    """Thread count and precision of the caller's process are the same before and after."""
    store = Store(tmp_path)
    weight = random_weight(dice, (6, 5), "BF16", ["BF16"], 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    torch.set_float32_matmul_precision("medium")
    try:
        store.build([store.fused(weight)], tmp_path / "out", engine)
        assert torch.get_num_threads() == threads + 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == threads + 1
        assert torch.get_float32_matmul_precision() == "medium"
        assert data_of(tmp_path / "out") == weight.expected("fp32-once")
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")


def test_flushing_of_subnormals_in_the_caller_does_not_reach_the_workers(
    engine: Engine, tmp_path: Path, dice: random.Random
) -> None:
    """A process that flushes subnormals still gets the rule's bytes."""
    store = Store(tmp_path)
    weight = random_weight(dice, (6, 40), "BF16", ["BF16"], 4, tiny=True)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        store.build([store.fused(weight)], tmp_path / "out", engine)
    finally:
        torch.set_flush_denormal(False)
    assert data_of(tmp_path / "out") == weight.expected("fp32-once")


def test_the_last_of_overlapping_sessions_puts_the_precision_back() -> None:
    """A session that ends while another one runs must not lower its precision."""
    torch.set_float32_matmul_precision("high")
    try:
        with full_precision():
            with full_precision():
                pass
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_switches_set_in_the_new_way_come_back() -> None:
    """Torch's per-library switches are raised and restored too, in a process of its own because they do not mix."""
    script = """
import torch
from overlay.fusion.settings import full_precision
switch = torch.backends.mkldnn.matmul
if not hasattr(switch, "fp32_precision"):
    raise SystemExit("absent")
switch.fp32_precision = "bf16"
a = torch.randn(64, 64)
lowered = torch.mm(a, a)
with full_precision():
    assert switch.fp32_precision in ("ieee", "none"), switch.fp32_precision
    full = torch.mm(a, a)
assert switch.fp32_precision == "bf16"
assert torch.allclose(full.double(), a.double() @ a.double(), atol=1e-4)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.stderr.strip() == "absent":
        pytest.skip("this torch has no such switches")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "", "cpu:0"])
def test_an_unknown_device_is_refused(name: str) -> None:
    """The message lists what there is."""
    with pytest.raises(InvalidUsage, match=r"found auto, cpu") as caught:
        Engine.start(name)
    assert caught.value.code == "no-such-device"


def test_an_engine_describes_itself_in_json() -> None:
    """Device, library or why none, and the test's outcome."""
    about = json.loads(json.dumps(Engine.start("cpu").describe()))
    assert about["device"] == "cpu"
    assert (about["library"] is None) == bool(about["library_unused_because"])
    if about["library"]:
        assert about["self_test"]["passed"]
        assert about["self_test"]["num_products"] > 0


@pytest.mark.parametrize("failure", ["mismatch", "error"])
def test_a_library_that_fails_the_test_is_not_used(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """The engine goes on with the ordered kernel and says so."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("deterministic mode wants a workspace")

    monkeypatch.setattr(engine_module, "mkl_library", lambda: (Library("bad", {torch.float32: 2000}), ""))
    if failure == "error":
        monkeypatch.setattr(engine_module, "run_self_test", broken)
    found = Engine.start("cpu")
    assert found.library is None
    about = found.describe()
    assert "bad failed" in about["library_unused_because"]
    assert (about["self_test"] is None) == (failure == "error")


def test_ordered_alone_gives_the_same_bytes(engine: Engine, tmp_path: Path, dice: random.Random) -> None:
    """With the library switched off every product is the ordered kernel's, and the file is the same."""
    alone = Engine.start("cpu", ordered=True)
    assert alone.library is None
    assert "asked for" in alone.describe()["library_unused_because"]
    store = Store(tmp_path)
    weights = [
        store.fused(random_weight(dice, (70, 33), "BF16", ["BF16", "F16", "F32"], 24, name="a")),
        store.fused(random_weight(dice, (3, 7), "F32", ["BF16"], 200, name="b")),
    ]
    made = [store.build(weights, tmp_path / f"out{i}", each) for i, each in enumerate((engine, alone))]
    assert made[0].digest == made[1].digest
    assert set(made[1].kernels) == {"ordered"}


def test_counts_add_up_to_what_was_made(engine: Engine, tmp_path: Path, dice: random.Random) -> None:
    """Each value of D is counted once, whoever made it, whatever the threads."""
    store = Store(tmp_path)
    weights = [
        random_weight(dice, (6, 5), "BF16", ["BF16", "F32"], 4, name="a"),
        random_weight(dice, (3, 7), "BF16", ["F16"], 500, name="b"),
    ]
    for jobs in (1, 3):
        out = tmp_path / f"out{jobs}"
        built = store.build([store.fused(weight) for weight in weights], out, engine, jobs=jobs)
        assert sum(built.kernels.values()) == 6 * 5 * 2 + 3 * 7
        assert built.kernels["ordered"] >= 3 * 7
