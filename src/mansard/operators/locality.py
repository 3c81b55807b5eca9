"""Traffic beyond the compulsory: what a small fast memory forces, and what a cache line costs strided reads."""

from __future__ import annotations

import numpy as np

from mansard.core import dtype_bytes
from mansard.core.demand import Number
from mansard.operators.counting import Count, at_least, number


def matmul_least_traffic_bytes(*, m: Count, n: Count, k: Count, dtype: str, fast_bytes: Count) -> Number:
    """Return the bytes that an (m, k) by (k, n) product must move between a slow memory and a fast one.

    Args:
        m, n, k: Dimensions.
        dtype: Element type.
        fast_bytes: Size of the fast memory that operands share; accumulators kept elsewhere leave more of it [B].

    Returns:
        The larger of 2 m n k / sqrt(S) words with S words of fast memory, and every operand and result once [B].

    Assumes: the leading term of the bound, for products much larger than the fast memory.
    Source: Hong and Kung 1981, the red-blue pebble game; constant 2 by Smith, Lowery, Langou, van de Geijn, arXiv:1702.02017.

    1024^3 in f64 with 32 KiB, 4096 words: 2 * 2^30 / 64 = 2^25 words of 8 B.

    >>> matmul_least_traffic_bytes(m=1024, n=1024, k=1024, dtype="f64", fast_bytes=32768) == 2.0**25 * 8
    True
    """
    size = float(dtype_bytes(dtype))
    words = number(fast_bytes) / size
    game = 2.0 * number(m) * number(n) * number(k) / np.sqrt(words) * size
    once = (number(m) * number(k) + number(k) * number(n) + number(m) * number(n)) * size
    return at_least(game, once)


def matmul_largest_intensity(*, dtype: str, fast_bytes: Count) -> Number:
    """Return the most FLOP per byte that a large matrix product can reach over a fast memory of `fast_bytes`.

    Args:
        dtype: Element type; its size is never taken as 8.
        fast_bytes: Size of the fast memory [B].

    Returns:
        sqrt(S) / b with S words of b bytes [FLOP/B]: sqrt(M)/22.6 in f64, /8 in f32, /2.83 in bf16, sqrt(M) in fp8.

    Source: as `matmul_least_traffic_bytes`.

    >>> round(matmul_largest_intensity(dtype="f64", fast_bytes=32768), 3)
    8.0
    """
    size = float(dtype_bytes(dtype))
    value = np.sqrt(number(fast_bytes) / size) / size
    return value if isinstance(value, np.ndarray) else float(value)


def strided_read_bytes(*, elements: Count, dtype: str, stride: Count, line_bytes: float = 64.0) -> Number:
    """Return the bytes that reading one element of every `stride` moves when memory moves in lines.

    Args:
        elements: Elements that are read, each once, none of them still near from before.
        dtype: Element type.
        stride: Distance of neighbours in elements; 1 is contiguous.
        line_bytes: Line of the cache [B].

    Returns:
        min(stride x element, line) per element [B].

    Source: Drepper, What Every Programmer Should Know About Memory, 2007, section 3.3.

    A column of an f32 matrix of 1024 columns: a 64-byte line for each 4-byte element.

    >>> strided_read_bytes(elements=1024, dtype="f32", stride=1024)
    65536.0
    """
    step = number(stride) * dtype_bytes(dtype)
    moved = np.minimum(step, line_bytes) if isinstance(step, np.ndarray) else min(step, line_bytes)
    return number(elements) * at_least(moved, float(dtype_bytes(dtype)))
