"""A long chain of elementwise operations on arrays far larger than the last-level cache."""

import argparse

import jax
import jax.numpy as jnp


def smooth(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    y = jnp.maximum(x * a + b, 0.0)
    return jnp.clip(y - 0.5 * x, -1.0, 1.0) + x * 0.25


def blend(y: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.minimum(y * b - a, 1.0) * 0.5 + y * 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--elements", type=int, default=24 * 1024 * 1024)
    parser.add_argument("--donate", action="store_true", help="let each call overwrite its first argument")
    parser.add_argument("--eager", action="store_true", help="do not compile: every operation writes a new array")
    args = parser.parse_args()

    if args.eager:
        first, second = smooth, blend
    else:
        donated = (0,) if args.donate else ()
        first, second = jax.jit(smooth, donate_argnums=donated), jax.jit(blend, donate_argnums=donated)
    keys = jax.random.split(jax.random.key(0), 3)
    x, a, b = (jax.random.uniform(key, (args.elements,)) for key in keys)
    print(f"{args.elements} elements, {x.nbytes} bytes each")
    for step in range(args.steps):
        for _ in range(2):
            x = first(x, a, b)
            x = second(x, a, b)
        x.block_until_ready()
        if step % 20 == 0:
            print(f"step {step}: first {float(x[0]):.4f}")


if __name__ == "__main__":
    main()
