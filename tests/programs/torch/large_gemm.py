"""Multiply large matrices: two chained products per step, in float32 or bfloat16."""

import argparse

import torch


def project(x: torch.Tensor, layers: list[torch.Tensor]) -> torch.Tensor:
    for weight in layers:
        x = x @ weight
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batches", type=int, default=20, help="steps in one epoch")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=1536)
    parser.add_argument("--hidden", type=int, default=1792)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()

    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    x = torch.randn(args.rows, args.inner).to(dtype)
    w_up = (torch.randn(args.inner, args.hidden) / args.inner**0.5).to(dtype)
    w_down = (torch.randn(args.hidden, args.inner) / args.hidden**0.5).to(dtype)
    print(f"x {tuple(x.shape)}, up {tuple(w_up.shape)}, down {tuple(w_down.shape)}, {args.dtype}")
    for epoch in range(args.epochs):
        for _ in range(args.batches):
            y = project(x, [w_up, w_down])
        print(f"epoch {epoch}: mean square {y.float().square().mean().item():.2f}")


if __name__ == "__main__":
    main()
