"""Every step does matrix work, elementwise work, Python work and a string of tiny operators."""

import argparse
import json
import time

import torch


class Mix:
    def __init__(self, n: int, elements: int, words: int, tiny: int) -> None:
        self.a, self.b = torch.randn(n, n) / n**0.5, torch.randn(n, n) / n**0.5
        self.c = torch.empty(n, n)
        self.x, self.y = torch.rand(elements), torch.rand(elements)
        self.words, self.tiny = words, tiny
        self.small = torch.ones(16)

    def gemm(self) -> None:
        for _ in range(2):
            torch.mm(self.a, self.b, out=self.c)

    def elementwise(self) -> None:
        for _ in range(3):
            self.x.mul_(0.5).add_(self.y)
            self.x.clamp_(0.0, 1.0)

    def host(self) -> int:
        text = " ".join(str(i * 7919 % 1000) for i in range(self.words))
        return sum(int(word) for word in text.split())

    def latency(self) -> torch.Tensor:
        s = self.small
        for _ in range(self.tiny):
            s = (s + 1.0) * 0.5
        return s


PHASES = ("gemm", "elementwise", "host", "latency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--n", type=int, default=1408, help="side of the square matrices")
    parser.add_argument("--elements", type=int, default=24 * 1024 * 1024)
    parser.add_argument("--words", type=int, default=130_000, help="numbers printed and parsed by Python in a step")
    parser.add_argument("--tiny", type=int, default=4_000, help="pairs of tiny operators in a step")
    parser.add_argument("--phases", help="write how long each phase took to this JSON file")
    args = parser.parse_args()

    torch.manual_seed(0)
    mix = Mix(args.n, args.elements, args.words, args.tiny)
    times: dict[str, list[float]] = {name: [] for name in PHASES}
    with torch.no_grad():
        for step in range(args.steps):
            for name in PHASES:
                start = time.perf_counter()
                value = getattr(mix, name)()
                times[name].append(time.perf_counter() - start)
            if step % 20 == 0:
                print(f"step {step}: {value[0].item():.6f} {mix.x[0].item():.4f}")
    if args.phases:
        with open(args.phases, "w", encoding="utf-8") as file:
            json.dump(times, file)


if __name__ == "__main__":
    main()
