"""Every step does matrix work, elementwise work, Python work and a string of tiny operators."""

import argparse
import json
import time
from functools import partial

import jax
import jax.numpy as jnp


@jax.jit
def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


@partial(jax.jit, donate_argnums=0)
def relax(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.clip(0.5 * x + y, 0.0, 1.0)


class Mix:
    def __init__(self, n: int, elements: int, words: int, tiny: int) -> None:
        keys = jax.random.split(jax.random.key(0), 4)
        self.a = jax.random.normal(keys[0], (n, n)) / n**0.5
        self.b = jax.random.normal(keys[1], (n, n)) / n**0.5
        self.x = jax.random.uniform(keys[2], (elements,))
        self.y = jax.random.uniform(keys[3], (elements,))
        self.words, self.tiny = words, tiny
        self.small = jnp.ones(16)

    def gemm(self) -> jax.Array:
        return multiply(multiply(self.a, self.b), self.b).block_until_ready()

    def elementwise(self) -> jax.Array:
        for _ in range(8):
            self.x = relax(self.x, self.y)
        return self.x.block_until_ready()

    def host(self) -> int:
        text = " ".join(str(i * 7919 % 1000) for i in range(self.words))
        return sum(int(word) for word in text.split())

    def latency(self) -> jax.Array:
        s = self.small
        for _ in range(self.tiny):
            s = (s + 1.0) * 0.5
        return s.block_until_ready()


PHASES = ("gemm", "elementwise", "host", "latency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--n", type=int, default=1792, help="side of the square matrices")
    parser.add_argument("--elements", type=int, default=24 * 1024 * 1024)
    parser.add_argument("--words", type=int, default=130_000, help="numbers printed and parsed by Python in a step")
    parser.add_argument("--tiny", type=int, default=1_000, help="pairs of tiny operators in a step")
    parser.add_argument("--phases", help="write how long each phase took to this JSON file")
    args = parser.parse_args()

    mix = Mix(args.n, args.elements, args.words, args.tiny)
    times: dict[str, list[float]] = {name: [] for name in PHASES}
    for step in range(args.steps):
        for name in PHASES:
            start = time.perf_counter()
            value = getattr(mix, name)()
            times[name].append(time.perf_counter() - start)
        if step % 20 == 0:
            print(f"step {step}: {float(value[0]):.6f} {float(mix.x[0]):.4f}")
    if args.phases:
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump(times, file)


if __name__ == "__main__":
    main()
