"""The model and its loop."""

import itertools

import torch
from torch import nn


class Trainer:
    """Holds a model and an optimizer; the data is one random batch."""

    def __init__(self, widths: list[int], *, bf16: bool) -> None:
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.widths, self.bf16 = widths, bf16

    def run_step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = nn.functional.mse_loss(self.model(x).float(), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run_epoch(self, batches: int, batch: int) -> float:
        x, target = torch.randn(batch, self.widths[0]), torch.randn(batch, self.widths[-1])
        for _ in range(batches):
            loss = self.run_step(x, target)
        return loss.item()
