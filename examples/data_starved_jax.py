"""Fit a small model in JAX to log lines that a generator parses one by one in Python."""

import argparse
import json
import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

Params = list[tuple[jax.Array, jax.Array]]


def log_lines(count: int, features: int) -> list[str]:
    rng = random.Random(0)
    return [
        json.dumps({"x": [round(rng.random(), 4) for _ in range(features)], "y": rng.random()}) for _ in range(count)
    ]


def batches(lines: list[str], steps: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Parse each line, centre its features and add some noise."""
    rng = random.Random(1)
    for _ in range(steps):
        records = [json.loads(rng.choice(lines)) for _ in range(size)]
        rows = []
        for record in records:
            mean = sum(record["x"]) / len(record["x"])
            rows.append([value - mean + rng.gauss(0.0, 0.01) for value in record["x"]])
        yield np.array(rows, np.float32), np.array([record["y"] for record in records], np.float32)


def predict(params: Params, x: jax.Array) -> jax.Array:
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return (x @ weight + bias)[:, 0]


@jax.jit
def train_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((predict(p, x) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--features", type=int, default=1024)
    args = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), 3)
    widths = [args.features, 256, 256, 1]
    params = [
        (jax.random.normal(key, (n_in, n_out)) / n_in**0.5, jnp.zeros(n_out))
        for key, n_in, n_out in zip(keys, widths[:-1], widths[1:], strict=True)
    ]
    for step, (x, y) in enumerate(batches(log_lines(2048, args.features), args.steps, args.batch)):
        params, loss = train_step(params, x, y)
        loss = float(loss)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
