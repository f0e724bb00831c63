"""Torch settings of the whole process that a fuse depends on, held while it runs and then put back."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Any

from overlay.fusion.quiet_torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["full_precision"]

_LOCK = threading.Lock()
_HOLDERS: list[dict[str, Any]] = []


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Keeps fp32 products in fp32 (no TF32, no BF16), and puts back precision and thread count when the last one ends.

    Worker threads set their own number of threads; torch also remembers the latest such call for threads to come, which
    is what is put back here.
    """
    with _LOCK:
        _HOLDERS.append(_HOLDERS[0] if _HOLDERS else _read())
        with _quiet():
            torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        with _LOCK:
            before = _HOLDERS.pop()
            if not _HOLDERS:
                _restore(before)


def _read() -> dict[str, Any]:
    with _quiet():
        try:
            overall: str | None = torch.get_float32_matmul_precision()
        except RuntimeError:  # the caller mixed torch's old and new switches, which leaves nothing to read
            overall = None
        return {
            "threads": torch.get_num_threads(),
            "overall": overall,
            "each": [getattr(switch, "fp32_precision", None) for switch in _switches()],
        }


def _restore(before: dict[str, Any]) -> None:
    torch.set_num_threads(before["threads"])
    with _quiet():
        torch.set_float32_matmul_precision(before["overall"] or "highest")
        for switch, precision in zip(_switches(), before["each"], strict=True):
            if precision is not None and switch.fp32_precision != precision:
                switch.fp32_precision = precision


def _switches() -> tuple[Any, ...]:
    """The switches that newer torch has a library each; older torch has the overall one alone."""
    return torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns about its old switch, the only one that every supported version has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
