"""Check with a plain clock that each program is limited by what its truth says; no part of Mansard is used.

    python benchmarks/bottleneck_programs/check_truth.py torch
    python benchmarks/bottleneck_programs/check_truth.py jax

- large_gemm: the bytes of its operands over its time are a small part of the copy bandwidth.
- elementwise_chain: the time per element falls several times when the arrays fit a cache, so arithmetic is not the limit;
  the in-place (donated) form moves its bytes at about the rate of an in-place scaling.
- tiny_ops: an eighth of the elements takes about the same time, so the cost is per call.
- slow_loader and mix have their own clock (`--phases`).
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[2] / "tests" / "programs"
LARGE, SMALL = 24 * 1024 * 1024, 64 * 1024


def load(framework: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{framework}_{name}", PROGRAMS / framework / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def median_s(work: Callable[[], Any], repeats: int = 9, inner: int = 1) -> float:
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        for _ in range(inner):
            work()
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times[2:])


def show(what: str, value: str) -> None:
    print(f"{what:66} {value}")


def check_gemm(multiply_s: float, copy_bytes_per_s: float) -> None:
    moved = 4 * (2048 * 1536 + 2 * 1536 * 1792 + 2 * 2048 * 1792 + 2048 * 1536)
    show("large_gemm: rate", f"{22_548_578_304 / multiply_s / 1e9:.0f} GFLOP/s")
    show("large_gemm: operand bytes over time, of copy bandwidth", f"{moved / multiply_s / copy_bytes_per_s:.1%}")


def check_chain(name: str, time_of: Callable[[int, int], float], bytes_per_element: int) -> None:
    large, small = time_of(LARGE, 1), time_of(SMALL, 200)
    ratio = (large / LARGE) / (small / SMALL)
    show(f"{name}: time per element, large over cache-resident", f"{ratio:.1f}")
    show(f"{name}: compulsory bytes over time", f"{bytes_per_element * LARGE / large / 1e9:.1f} GB/s")


def check_torch() -> None:
    import torch

    x, y = torch.rand(LARGE), torch.rand(LARGE)
    copy = 8 * LARGE / median_s(lambda: y.copy_(x))
    show("copy_ between two arrays", f"{copy / 1e9:.1f} GB/s")
    show("mul_ in place", f"{8 * LARGE / median_s(lambda: x.mul_(1.0)) / 1e9:.1f} GB/s")
    show("relu into a new array", f"{8 * LARGE / median_s(lambda: torch.relu(x)) / 1e9:.1f} GB/s")
    gemm = load("torch", "large_gemm")
    a, up, down = torch.randn(2048, 1536), torch.randn(1536, 1792), torch.randn(1792, 1536)
    check_gemm(median_s(lambda: gemm.project(a, [up, down])), copy)

    chain = load("torch", "elementwise_chain")

    def time_of(apply: Callable[..., Any]) -> Callable[[int, int], float]:
        def measure(count: int, inner: int) -> float:
            arrays = [torch.rand(count) for _ in range(3)]
            return median_s(lambda: apply(*arrays), inner=inner)

        return measure

    # mul, add, relu, mul by a number, sub, clamp, add: 12 + 12 + 8 + 8 + 12 + 8 + 12 bytes of float32
    check_chain("elementwise_chain", time_of(chain.chain), 72)
    # mul_, add_, relu_, sub_, clamp_, add_, mul_, add_
    check_chain("elementwise_chain in place", time_of(chain.chain_in_place), 12 + 12 + 8 + 12 + 8 + 12 + 8 + 12)

    tiny = load("torch", "tiny_ops")
    times = []
    for batch, hidden in ((4, 32), (1, 16)):
        cell, sequence = tiny.Cell(16, hidden), list(torch.randn(800, batch, 16))
        times.append(median_s(lambda c=cell, s=sequence: tiny.infer(c, s)))
    show("tiny_ops: time per operator", f"{times[0] / 4000 * 1e6:.2f} us")
    show("tiny_ops: time of 128 elements over 16 elements", f"{times[0] / times[1]:.2f}")
    show("tiny_ops: the Python loop alone", f"{tiny.interpreter_s(800) / times[0]:.2%}")


def check_jax() -> None:
    import jax
    import jax.numpy as jnp

    scale = jax.jit(lambda x: x * 1.0001, donate_argnums=0)
    state = [jnp.ones(LARGE)]

    def in_place() -> None:
        state[0] = scale(state[0]).block_until_ready()

    rate = 8 * LARGE / median_s(in_place)
    show("x * c, donated", f"{rate / 1e9:.1f} GB/s")
    fresh = jax.jit(lambda x: x * 1.0001)
    show(
        "x * c into a new array", f"{8 * LARGE / median_s(lambda: fresh(state[0]).block_until_ready()) / 1e9:.1f} GB/s"
    )
    gemm = load("jax", "large_gemm")
    a, up, down = jnp.ones((2048, 1536)), jnp.ones((1536, 1792)), jnp.ones((1792, 1536))
    check_gemm(median_s(lambda: gemm.project(a, up, down).block_until_ready()), rate)

    chain = load("jax", "elementwise_chain")
    for name, donated in (("elementwise_chain", ()), ("elementwise_chain donated", (0,))):
        first, second = (jax.jit(f, donate_argnums=donated) for f in (chain.smooth, chain.blend))

        def measure(count: int, inner: int, first: Any = first, second: Any = second) -> float:
            x, a, b = (jnp.full(count, value) for value in (0.3, 0.5, 0.7))

            def work() -> None:
                nonlocal x
                x = second(first(x, a, b), a, b).block_until_ready()

            return median_s(work, inner=inner)

        check_chain(name, measure, 2 * 16)  # each of the two calls reads three arrays and writes one

    tiny = load("jax", "tiny_ops")
    times = []
    for batch, hidden in ((4, 32), (1, 16)):
        params = {"w": jnp.ones((16, hidden)), "u": jnp.ones((hidden, hidden)), "b": jnp.ones(hidden)}
        sequence = list(jnp.ones((400, batch, 16)))
        times.append(median_s(lambda p=params, s=sequence: tiny.unrolled(p, s).block_until_ready()))
    show("tiny_ops: time per operator", f"{times[0] / 2000 * 1e6:.2f} us")
    show("tiny_ops: time of 128 elements over 16 elements", f"{times[0] / times[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["torch", "jax"])
    args = parser.parse_args()
    {"torch": check_torch, "jax": check_jax}[args.framework]()


if __name__ == "__main__":
    main()
