"""Train a small classifier on text rows that Python parses and augments one by one."""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset


def make_rows(count: int, features: int) -> list[str]:
    rng = random.Random(0)
    return [",".join([str(rng.randrange(10))] + [f"{rng.random():.4f}" for _ in range(features)]) for _ in range(count)]


class Rows(Dataset):
    """Rows of comma-separated text: a label, then the features."""

    def __init__(self, rows: list[str], examples: int) -> None:
        self.rows, self.examples = rows, examples

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        rng = random.Random(index)
        label, *fields = self.rows[index % len(self.rows)].split(",")
        values = [float(field) for field in fields]
        peak = max(values) or 1.0
        values = [value / peak + rng.gauss(0.0, 0.01) for value in values]
        if rng.random() < 0.5:
            values.reverse()
        return values, int(label)


def collate(examples: list[tuple[list[float], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([values for values, _ in examples]), torch.tensor([label for _, label in examples])


def plain_batches(data: Rows, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the same batches from an ordinary generator, without a DataLoader."""
    for first in range(0, len(data), size):
        yield collate([data[i] for i in range(first, min(first + size, len(data)))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rows", help="file of rows, - is standard input; without it they are made up")
    parser.add_argument("--generator", action="store_true", help="a plain generator instead of a DataLoader")
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

    torch.manual_seed(0)
    data = Rows(rows, args.steps * args.batch)
    batches = plain_batches(data, args.batch) if args.generator else DataLoader(data, args.batch, collate_fn=collate)
    model = torch.nn.Sequential(
        torch.nn.Linear(features, args.hidden), torch.nn.ReLU(), torch.nn.Linear(args.hidden, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    load, train = [], []
    mark = time.perf_counter()
    for step, (x, label) in enumerate(batches):
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        now = time.perf_counter()
        load.append(start - mark)
        train.append(now - start)
        mark = now
    if args.phases:
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump({"load": load, "train": train}, file)


if __name__ == "__main__":
    main()
