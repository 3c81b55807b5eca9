"""Train a small classifier on text rows that Python parses and augments one by one."""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]


def make_rows(count: int, features: int) -> list[str]:
    rng = random.Random(0)
    return [",".join([str(rng.randrange(10))] + [f"{rng.random():.4f}" for _ in range(features)]) for _ in range(count)]


def load(rows: list[str], steps: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = random.Random(1)
    for step in range(steps):
        values, labels = [], []
        for i in range(step * size, (step + 1) * size):
            label, *fields = rows[i % len(rows)].split(",")
            numbers = [float(field) for field in fields]
            peak = max(numbers) or 1.0
            numbers = [number / peak + rng.gauss(0.0, 0.01) for number in numbers]
            if rng.random() < 0.5:
                numbers.reverse()
            values.append(numbers)
            labels.append(int(label))
        yield np.array(values, dtype=np.float32), np.array(labels, dtype=np.int32)


def loss_of(params: Params, x: jax.Array, label: jax.Array) -> jax.Array:
    logits = jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], axis=1).mean()


@jax.jit
def train_step(params: Params, x: jax.Array, label: jax.Array) -> tuple[Params, jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(params, x, label)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rows", help="file of rows, - is standard input; without it they are made up")
    parser.add_argument("--phases", help="write how long loading and training took to this JSON file")
    args = parser.parse_args()

    if args.rows == "-":
        rows = sys.stdin.read().split()
    elif args.rows:
        with open(args.rows, encoding="utf-8") as file:
            rows = file.read().split()
    else:
        rows = make_rows(4096, args.features)
    features = rows[0].count(",")
    print(f"{len(rows)} rows of {features} features")

    key1, key2 = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(key1, (features, args.hidden)) / features**0.5,
        "b1": jnp.zeros(args.hidden),
        "w2": jax.random.normal(key2, (args.hidden, 10)) / args.hidden**0.5,
        "b2": jnp.zeros(10),
    }
    load_s, train_s = [], []
    mark = time.perf_counter()
    for step, (x, label) in enumerate(load(rows, args.steps, args.batch)):
        start = time.perf_counter()
        params, loss = train_step(params, x, label)
        loss = float(loss)
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}")
        now = time.perf_counter()
        load_s.append(start - mark)
        train_s.append(now - start)
        mark = now
    if args.phases:
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump({"load": load_s, "train": train_s}, file)


if __name__ == "__main__":
    main()
