"""The ordered product as one CUDA kernel, compiled at start by the compiler that torch brings along.

The torch operations of :mod:`overlay.fusion.ordered` go over D once for every k; here D stays in registers. Each step
is an ``fma`` rounded to nearest even, which the hardware has for fp32 and fp64 and which keeps subnormals.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from overlay.fusion.quiet_torch import torch

__all__ = ["fused_product"]

_THREADS = 256
_ROWS = 8
_SOURCE = """
extern "C" __global__ void ordered_product(
    const {type}* b, const {type}* a, {type}* d, const int rows, const int cols, const int rank, const int a_stride)
{{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    for (int first = blockIdx.y * {rows}; first < rows; first += gridDim.y * {rows}) {{
        {type} sum[{rows}];
        const {type}* row[{rows}];
        for (int i = 0; i < {rows}; ++i) {{
            sum[i] = 0;
            row[i] = b + (long long)min(first + i, rows - 1) * rank;
        }}
        for (int k = 0; k < rank; ++k) {{
            const {type} value = a[(long long)k * a_stride + col];
            #pragma unroll
            for (int i = 0; i < {rows}; ++i) sum[i] = {fma}(row[i][k], value, sum[i]);
        }}
        for (int i = 0; i < {rows} && first + i < rows; ++i) d[(long long)(first + i) * cols + col] = sum[i];
    }}
}}
"""
_TYPES = {torch.float32: ("float", "__fmaf_rn"), torch.float64: ("double", "__fma_rn")}
_MOST_BLOCKS = 65535


def fused_product(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor | None:
    """D = B A by the rule, on the current stream; None where this torch cannot compile kernels.

    Args:
        b: [rows, rank] on a GPU, fp32 or fp64.
        a: [rank, cols], likewise; rows of it may lie apart.
    """
    kernel = _kernel(b.dtype, b.device.index)
    if kernel is None:
        return None
    rows, rank, cols = b.shape[0], b.shape[1], a.shape[1]
    product = torch.empty(rows, cols, dtype=b.dtype, device=b.device)
    grid = (-(-cols // _THREADS), min(_MOST_BLOCKS, -(-rows // _ROWS)), 1)
    a = a if a.stride(1) == 1 else a.contiguous()
    kernel(grid, (_THREADS, 1, 1), [b.contiguous(), a, product, rows, cols, rank, a.stride(0)])
    return product


@cache
def _kernel(dtype: torch.dtype, _device: int) -> Any:
    name, fma = _TYPES[dtype]
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None or torch.version.hip is not None:
        return None
    try:
        return compile_kernel(_SOURCE.format(type=name, fma=fma, rows=_ROWS), "ordered_product")
    except (RuntimeError, OSError):  # no compiler in this installation
        return None
