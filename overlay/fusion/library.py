"""Where torch's own matrix product follows the rule, and the test that this device has to pass before it is used.

A library may add up k in any order, in blocks, or with other instructions for single rows and columns. Measured against
the ordered kernel, bit for bit:

- MKL (2024.2, in torch 2.13) keeps the rule in its strict reproducible modes as long as k is not cut into blocks: to
  rank 384 with AVX-512, to rank 256 with AVX2, in fp32 and fp64, for one thread, any shape, any leading dimension, and
  for C += A B alike. Outside strict mode single rows and columns break it. The mode is one of the whole process and can
  only be set before its first product. MKL's own functions set and tell it, so nobody has to export MKL_CBWR.
- cuBLAS on an H200 (CUDA 13.0, torch 2.11) does not keep it: 561 of 4060 fp32 products differed, from rank 4 on, and
  chunks of two release weights among them (``tools/gpu_identity.py``). GPUs use the ordered kernel.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from overlay.fusion.quiet_torch import torch

__all__ = ["Library", "mkl_library"]


@dataclass(frozen=True, slots=True)
class Library:
    """Bounds within which a library's product follows the rule.

    Attributes:
        name: Library and mode, for the record.
        max_rank: Largest rank, by working dtype; a dtype that is absent is never given to the library.
        min_rows: Fewest rows of B.
        min_cols: Fewest columns of A.
    """

    name: str
    max_rank: dict[torch.dtype, int]
    min_rows: int = 1
    min_cols: int = 1

    def covers(self, rows: int, cols: int, rank: int, dtype: torch.dtype) -> bool:
        """Whether [rows, rank] by [rank, cols] in ``dtype`` is within the bounds."""
        return rank <= self.max_rank.get(dtype, 0) and rows >= self.min_rows and cols >= self.min_cols


# Branches of mkl_types.h that are in the table, by number: MKL_CBWR_AVX2 and MKL_CBWR_AVX512.
_MKL_BRANCHES = {10: ("AVX2", 256), 12: ("AVX512", 384)}
_MKL_WIDER = {14: 12}  # AVX512_E1 processors take AVX512
_MKL_OFF = 1
_MKL_STRICT = 0x10000
_MKL_EVERYTHING = -1


def mkl_library() -> tuple[Library | None, str]:
    """MKL in strict mode, which is asked for here where nobody has chosen a mode yet.

    The mode holds for the rest of the process; it changes no result but makes it reproducible.

    Returns:
        The library, or None and why not.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return None, "torch was built without MKL"
    try:
        mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        get_mode, set_mode, best_branch = (
            mkl.mkl_serv_cbwr_get,
            mkl.mkl_serv_cbwr_set,
            mkl.mkl_serv_cbwr_get_auto_branch,
        )
    except (OSError, AttributeError):
        return None, "this build of torch does not let MKL's mode be seen"
    if get_mode(_MKL_EVERYTHING) == _MKL_OFF:
        branch = best_branch()
        branch = _MKL_WIDER.get(branch, branch)
        if branch not in _MKL_BRANCHES:
            return None, "MKL has no strict mode for this processor"
        if set_mode(branch | _MKL_STRICT) != 0:
            return None, "a product ran in this process before MKL's strict mode could be set"
    mode = get_mode(_MKL_EVERYTHING)
    if not mode & _MKL_STRICT or mode & ~_MKL_STRICT not in _MKL_BRANCHES:
        return None, "the environment chose another mode of MKL (MKL_CBWR)"
    name, max_rank = _MKL_BRANCHES[mode & ~_MKL_STRICT]
    return Library(f"mkl {name},STRICT", {torch.float32: max_rank, torch.float64: max_rank}), ""
