from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from overlay.fusion.library import Library, mkl_library
from overlay.fusion.ordered import ordered_product
from overlay.fusion.products import Products
from overlay.fusion.self_test import run_self_test, same_bits

if TYPE_CHECKING:
    from overlay.fusion.engine import Engine

CHILD = Path(__file__).parents[1] / "support" / "fuse_child.py"
CPU = torch.device("cpu")


def built_in_a_process(folder: Path, *args: str, **environ: str) -> dict[str, Any]:
    """What ``fuse_child`` prints in a given environment."""
    done = subprocess.run(
        [sys.executable, CHILD, folder, *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same build in an environment that says nothing."""
    return built_in_a_process(tmp_path_factory.mktemp("plain"), "1")


@pytest.mark.parametrize(
    ("environ", "args", "library"),
    [
        ({}, ("2",), None),
        ({"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, ("2",), "mkl AVX2,STRICT"),
        ({"MKL_CBWR": "AVX2,STRICT"}, ("1",), "mkl AVX2,STRICT"),
        ({"MKL_CBWR": "COMPATIBLE"}, ("2",), ""),
        ({"MKL_CBWR": "AVX512"}, ("1",), ""),
        ({"OMP_NUM_THREADS": "4"}, ("3",), None),
        ({}, ("2", "product-first"), ""),
    ],
    ids=["threads", "avx2", "avx2-strict", "compatible", "not-strict", "h17-more-threads", "product-first"],
)
def test_the_bytes_do_not_depend_on_the_library_or_its_mode(
    tmp_path: Path, plain: dict[str, Any], environ: dict[str, str], args: tuple[str, ...], library: str | None
) -> None:
    """Modes of MKL that break the rule are noticed and not used; those that keep it give the same file."""
    found = built_in_a_process(tmp_path, *args, **environ)
    assert found["digest"] == plain["digest"]
    expected = plain["library"] if library is None else library or None
    if plain["library"] is not None:  # another processor has no mode to choose
        assert found["library"] == expected
        assert bool(found["library_unused_because"]) == (expected is None)
        assert ("a product ran" in str(found["library_unused_because"])) == ("product-first" in args)
    assert "ordered" in found["kernels"]
    assert found["library"] is None or found["library"] in found["kernels"]


def test_the_table_is_a_bound(engine: Engine) -> None:
    """Ranks above it, unlisted dtypes and shapes below the floor are not the library's."""
    library = Library("x", {torch.float32: 384}, min_rows=2, min_cols=3)
    assert library.covers(2, 3, 384, torch.float32)
    assert not library.covers(2, 3, 385, torch.float32)
    assert not library.covers(1, 3, 1, torch.float32)
    assert not library.covers(2, 2, 1, torch.float32)
    assert not library.covers(2, 3, 1, torch.float64)
    assert mkl_library()[0] == engine.library


def test_the_self_test_notices_a_library_that_breaks_the_rule() -> None:
    """MKL beyond its bound cuts k into blocks, which the test must see (so must it see no false alarm at rank 1)."""
    broken = run_self_test(Library("too wide", {torch.float32: 1024}), CPU)
    assert not broken.passed
    assert any("1024" in mismatch for mismatch in broken.mismatches)
    assert not run_self_test(Library("fp64", {torch.float64: 1024}), CPU).passed


def test_the_self_test_notices_a_lost_sign_or_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is right but for one zero's sign, or flushes subnormals, fails the test."""

    def negative_zeros(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        exact = ordered_product(b, a)
        return torch.where(exact == 0, -0.0, exact)

    def flushed(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        exact = ordered_product(b, a)
        return torch.where(exact.abs() < torch.finfo(exact.dtype).tiny, 0.0, exact)

    library = Library("exact", {torch.float32: 8})
    for mm, passes in ((ordered_product, True), (negative_zeros, False), (flushed, False)):
        monkeypatch.setattr(torch, "mm", mm)
        monkeypatch.setattr(torch.Tensor, "addmm_", lambda total, b, a: total.add_(ordered_product(b, a)))
        assert run_self_test(library, CPU).passed is passes


@pytest.mark.parametrize("shape", [(195, 64, 5376), (73, 64, 14336), (390, 16, 2688), (48, 384, 5376), (1, 64, 5376)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_library_keeps_the_rule_at_real_widths(
    engine: Engine, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Chunks as a build makes them, also with columns cut out of A."""
    if engine.library is None:
        pytest.skip("no library is trusted here")
    rows, rank, cols = shape
    generator = torch.Generator().manual_seed(5)
    b = torch.randn(rows, rank, generator=generator).to(torch.bfloat16).to(dtype)
    a = torch.randn(rank, cols + 3, generator=generator).to(torch.bfloat16).to(dtype)[:, 3:]
    products = Products(engine.library)
    assert same_bits(products.of(b, a), ordered_product(b, a).float())
    assert products.elements == {engine.library.name: rows * cols}


def test_the_self_test_tries_the_device_itself_where_no_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordered kernel passes; a device that flushes subnormals to zero does not."""
    assert run_self_test(None, CPU).passed

    def flushing(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        exact = ordered_product(b, a)
        return torch.where(exact.abs() < torch.finfo(exact.dtype).tiny, 0.0, exact)

    monkeypatch.setattr("overlay.fusion.products.ordered_product", flushing)
    assert not run_self_test(None, CPU).passed
