"""Multiply large matrices: two chained products per step, in one call or in a compiled loop."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp


@jax.jit
def project(x: jax.Array, w_up: jax.Array, w_down: jax.Array) -> jax.Array:
    return (x @ w_up) @ w_down


@partial(jax.jit, static_argnames="rounds")
def project_loop(x: jax.Array, w_up: jax.Array, w_down: jax.Array, rounds: int) -> jax.Array:
    """Apply the two products `rounds` times inside one compiled loop."""
    return jax.lax.fori_loop(0, rounds, lambda _, h: (h @ w_up) @ w_down, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batches", type=int, default=20, help="steps in one epoch")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=1536)
    parser.add_argument("--hidden", type=int, default=1792)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=1, help="more than 1 puts the products into a compiled loop")
    args = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), 3)
    dtype = jnp.dtype(args.dtype)
    x = jax.random.normal(keys[0], (args.rows, args.inner)).astype(dtype)
    w_up = (jax.random.normal(keys[1], (args.inner, args.hidden)) / args.inner**0.5).astype(dtype)
    w_down = (jax.random.normal(keys[2], (args.hidden, args.inner)) / args.hidden**0.5).astype(dtype)
    print(f"x {x.shape}, up {w_up.shape}, down {w_down.shape}, {dtype}")
    for epoch in range(args.epochs):
        for _ in range(args.batches):
            y = project_loop(x, w_up, w_down, args.rounds) if args.rounds > 1 else project(x, w_up, w_down)
            y.block_until_ready()
        print(f"epoch {epoch}: first {float(y[0, 0]):.2f}")


if __name__ == "__main__":
    main()
