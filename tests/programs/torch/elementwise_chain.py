"""A long chain of elementwise operations on arrays far larger than the last-level cache."""

import argparse

import torch


def chain(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Every operation writes a new array, as such code is usually written."""
    y = x * a + b
    y = torch.relu(y)
    y = y - 0.5 * x
    y = torch.clamp(y, -1.0, 1.0)
    return y + x


def chain_in_place(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same kind of work without a single new array."""
    x.mul_(a).add_(b).relu_()
    x.sub_(a, alpha=0.5).clamp_(-1.0, 1.0)
    return x.add_(b).mul_(0.5).add_(a)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--elements", type=int, default=24 * 1024 * 1024)
    parser.add_argument("--in-place", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    x, a, b = (torch.rand(args.elements) for _ in range(3))
    apply = chain_in_place if args.in_place else chain
    print(f"{args.elements} elements, {x.nbytes} bytes each")
    for step in range(args.steps):
        y = apply(x, a, b)
        if step % 10 == 0:
            print(f"step {step}: first {y[0].item():.4f}")


if __name__ == "__main__":
    main()
