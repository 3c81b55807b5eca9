"""A small recurrent network: thousands of tiny operators in a step, called from Python or in a compiled loop."""

import argparse
import json
import time

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]


def cell(params: Params, h: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.dot(x, params["w"]) + jnp.dot(h, params["u"]) + params["b"])


def unrolled(params: Params, sequence: list[jax.Array]) -> jax.Array:
    """Call every operator from Python."""
    h = jnp.zeros((sequence[0].shape[0], params["u"].shape[0]))
    for x in sequence:
        h = cell(params, h, x)
    return h


@jax.jit
def scanned(params: Params, sequence: jax.Array) -> jax.Array:
    """Run the same recurrence in one compiled loop."""
    h = jnp.zeros((sequence.shape[1], params["u"].shape[0]))
    return jax.lax.scan(lambda h, x: (cell(params, h, x), None), h, sequence)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=400, help="time steps of one sequence")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--scan", action="store_true", help="one compiled loop instead of a Python loop")
    parser.add_argument("--phases", help="write how long the steps took to this JSON file")
    args = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "w": 0.1 * jax.random.normal(keys[0], (args.inputs, args.hidden)),
        "u": 0.1 * jax.random.normal(keys[1], (args.hidden, args.hidden)),
        "b": jnp.zeros(args.hidden),
    }
    sequence = jax.random.normal(keys[2], (args.length, args.batch, args.inputs))
    steps = list(sequence)
    print(f"{args.length} time steps of {args.batch}x{args.inputs}, hidden {args.hidden}")
    times = []
    for step in range(args.steps):
        start = time.perf_counter()
        h = scanned(params, sequence) if args.scan else unrolled(params, steps)
        h.block_until_ready()
        times.append(time.perf_counter() - start)
        if step % max(1, args.steps // 5) == 0:
            print(f"step {step}: {float(h.sum()):.3f}")
    if args.phases:
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump({"operators": times}, file)


if __name__ == "__main__":
    main()
