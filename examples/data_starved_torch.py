"""Train a small image classifier in PyTorch whose images are decoded and augmented one by one in Python."""

import argparse
import random
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Compressed grey images with 1 byte per pixel; each one is unpacked, shifted and noised in plain Python."""

    def __init__(self, count: int, side: int) -> None:
        rng = random.Random(0)
        self.side = side
        self.packed = [zlib.compress(bytes(rng.randrange(256) for _ in range(side * side))) for _ in range(256)]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rng = random.Random(index)
        pixels = zlib.decompress(self.packed[index % len(self.packed)])
        shift = rng.randrange(self.side)
        rows = [pixels[i * self.side : (i + 1) * self.side] for i in range(self.side)]
        rows = [row[shift:] + row[:shift] for row in rows]
        image = [[value / 255.0 + rng.gauss(0.0, 0.02) for value in row] for row in rows]
        return torch.tensor(image).unsqueeze(0), index % 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=48)
    parser.add_argument("--workers", type=int, default=0, help="loader processes; 0 loads in the training process")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(32 * (args.side // 16) ** 2, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(args.steps * args.batch, args.side), args.batch, num_workers=args.workers)
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
