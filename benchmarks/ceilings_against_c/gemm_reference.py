"""Square products through torch or JAX in the plainest loop, best of many: the yardstick for the matrix ceilings.

Usage: gemm_reference.py BACKEND THREADS, one JSON object {dtype: FLOP/s} on stdout.
"""

import json
import sys
import time

SIZES = (512, 1024, 2048)
WINDOW_S = 0.25


def best(call, size):
    """Return the best rate of a call over a window [FLOP/s]."""
    call()
    end, fastest = time.perf_counter() + WINDOW_S, float("inf")
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * size**3 / fastest


def with_torch(threads):
    import torch

    torch.set_num_threads(threads)
    rates = {}
    for name, kind in (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16)):
        for n in SIZES:
            x, y = torch.randn(n, n).to(kind), torch.randn(n, n).to(kind)
            out = torch.empty(n, n, dtype=kind)
            rates[name] = max(rates.get(name, 0.0), best(lambda x=x, y=y, out=out: torch.mm(x, y, out=out), n))
    return rates


def with_jax():
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    rates = {}
    for name, kind, wide in (
        ("f32", jnp.float32, jnp.float32),
        ("f64", jnp.float64, jnp.float64),
        ("bf16", jnp.bfloat16, jnp.float32),
    ):
        product = jax.jit(lambda a, b, wide=wide: jax.lax.dot(a, b, preferred_element_type=wide))
        for n in SIZES:
            x = jax.random.normal(jax.random.key(0), (n, n)).astype(kind)
            y = jax.random.normal(jax.random.key(1), (n, n)).astype(kind)
            rates[name] = max(rates.get(name, 0.0), best(lambda x=x, y=y, f=product: f(x, y).block_until_ready(), n))
    return rates


if __name__ == "__main__":
    print(json.dumps(with_torch(int(sys.argv[2])) if sys.argv[1] == "torch" else with_jax()))
