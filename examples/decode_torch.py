"""Generate tokens one by one with a small decoder and a key-value cache, in PyTorch."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    """One decoder layer that keeps the keys and values of all earlier tokens."""

    def __init__(self, width: int, heads: int, batch: int, capacity: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(batch, heads, capacity, width // heads))
        self.register_buffer("values", torch.zeros(batch, heads, capacity, width // heads))

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        batch, _, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, 3, self.heads, -1).unbind(1)
        self.keys[:, :, position], self.values[:, :, position] = k, v
        known = slice(0, position + 1)
        attended = F.scaled_dot_product_attention(q.unsqueeze(2), self.keys[:, :, known], self.values[:, :, known])
        x = x + self.out(attended.reshape(batch, 1, width))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, batch: int, capacity: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(capacity, width)
        self.blocks = nn.ModuleList(Block(width, heads, batch, capacity) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, token: torch.Tensor, position: int) -> torch.Tensor:
        x = self.token(token) + self.position.weight[position]
        for block in self.blocks:
            x = block(x, position)
        return self.head(self.norm(x))[:, -1]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Decoder(args.vocabulary, args.width, args.heads, args.layers, args.batch, args.tokens).eval()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    token = torch.zeros(args.batch, 1, dtype=torch.long)
    chosen = []
    for position in range(args.tokens):
        token = model(token, position).argmax(-1, keepdim=True)
        chosen.append(token[0].item())
    print("first tokens:", *chosen[:10])


if __name__ == "__main__":
    main()
