"""Train a three-layer MLP: forward, backward and update in one compiled function."""

import argparse

from .trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(prog="mlp_trainer", description=__doc__)
    parser.add_argument("widths", type=int, nargs="*", default=[768, 3072, 3072, 256])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1024)
    args = parser.parse_args()

    trainer = Trainer(args.widths)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: loss {trainer.run_epoch(args.batches, args.batch):.3f}")


main()
