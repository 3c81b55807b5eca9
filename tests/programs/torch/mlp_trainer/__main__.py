"""Train a three-layer MLP: forward, backward and optimizer, in float32 or under bfloat16 autocast."""

import argparse

import torch

from .trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(prog="mlp_trainer", description=__doc__)
    parser.add_argument("widths", type=int, nargs="*", default=[768, 3072, 3072, 256])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    trainer = Trainer(args.widths, bf16=args.bf16)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: loss {trainer.run_epoch(args.batches, args.batch):.3f}")


main()
