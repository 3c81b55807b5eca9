"""What transformer blocks are made of, once: normalisation and gate, in f64 for checking and in JAX for timing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
EPSILON = 1e-6


def norm(x: Array, w: Array | float = 1.0) -> Array:
    """Return x / rms(x) * w over the last axis.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019.

    >>> norm(np.array([3.0, -4.0])).round(3).tolist()  # the root of the mean of 9 and 16 is 3.536
    [0.849, -1.131]
    """
    out: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON) * w
    return out


def gated(hidden: Array) -> Array:
    """Return silu(a) * b of the two halves of the last axis.

    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.

    >>> gated(np.array([0.0, 2.0, 5.0, 3.0])).round(3).tolist()  # 0 * 5, and 2 / (1 + e^-2) * 3
    [0.0, 5.285]
    """
    a, b = np.split(hidden, 2, axis=-1)
    out: Array = a / (1.0 + np.exp(-a)) * b
    return out


def jax_norm(x: Any, w: Any = None) -> Any:
    """Return x / rms(x) * w in JAX: computed in f32, returned in the type of `x`."""
    import jax

    jnp: Any = jax.numpy
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
    return (scaled if w is None else scaled * w.astype(jnp.float32)).astype(x.dtype)


def jax_gated(hidden: Any, dtype: Any) -> Any:
    """Return silu(a) * b of the two halves of the last axis in JAX: computed in f32, returned in `dtype`."""
    import jax

    jnp: Any = jax.numpy
    a, b = jnp.split(hidden.astype(jnp.float32), 2, axis=-1)
    return (jax.nn.silu(a) * b).astype(dtype)
