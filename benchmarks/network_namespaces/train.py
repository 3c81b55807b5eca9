"""One rank of a data-parallel training run: a multilayer perceptron, gradients averaged by gloo.

Rank, world size and address come from the environment, as torchrun sets them.
"""

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--hidden", type=int, default=512, help="width: about 4 B x (layers + 1) x width^2 of gradients"
    )
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--how", choices=("ddp", "all_reduce"), default="ddp")
    parser.add_argument("--times", type=Path, help="rank 0 writes the time of each step [s] here, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    width = args.hidden
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(width, width))
    if args.how == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(args.batch, width), torch.randn(args.batch, width)
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if args.how == "all_reduce":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        times.append(time.perf_counter() - start)
    if args.times is not None and dist.get_rank() == 0:
        args.times.write_text(json.dumps(times), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {os.environ['RANK']}: loss {loss.item():.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
