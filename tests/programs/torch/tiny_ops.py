"""A small recurrent network unrolled in Python: thousands of tiny operators in a step."""

import argparse
import json
import time

import torch


class Cell(torch.nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.w = torch.nn.Parameter(torch.randn(inputs, hidden) * 0.1)
        self.u = torch.nn.Parameter(torch.randn(hidden, hidden) * 0.1)
        self.b = torch.nn.Parameter(torch.zeros(hidden))

    def forward(self, sequence: list[torch.Tensor]) -> torch.Tensor:
        w, u, b = self.w, self.u, self.b
        h = torch.zeros(sequence[0].shape[0], self.hidden)
        for x in sequence:
            h = torch.tanh(torch.mm(x, w) + torch.mm(h, u) + b)
        return h


def infer(cell: Cell, sequence: list[torch.Tensor]) -> float:
    with torch.no_grad():
        return cell(sequence).sum().item()


def train(cell: Cell, sequence: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = cell(sequence).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def interpreter_s(length: int, repeats: int = 200) -> float:
    """Return the time of the same Python loop without its five operators [s]."""
    start = time.perf_counter()
    for _ in range(repeats):
        h = 0.0
        for x in range(length):
            h = x
    return (time.perf_counter() - start) / repeats + 0.0 * h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--length", type=int, default=800, help="time steps of one sequence")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--phases", help="write how long the steps took to this JSON file")
    args = parser.parse_args()

    torch.manual_seed(0)
    cell = Cell(args.inputs, args.hidden)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    sequence = list(torch.randn(args.length, args.batch, args.inputs))
    print(f"{args.length} time steps of {args.batch}x{args.inputs}, hidden {args.hidden}")
    times = []
    for step in range(args.steps):
        start = time.perf_counter()
        value = train(cell, sequence, optimizer) if args.train else infer(cell, sequence)
        times.append(time.perf_counter() - start)
        if step % max(1, args.steps // 5) == 0:
            print(f"step {step}: {value:.3f}")
    if args.phases:
        host = interpreter_s(args.length)
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump({"operators": [t - host for t in times], "interpreter": [host for _ in times]}, file)


if __name__ == "__main__":
    main()
