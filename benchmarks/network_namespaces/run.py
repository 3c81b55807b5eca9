"""Data-parallel training over networks of a set rate and delay: what `mansard run` says, and how well it predicts.

For each rate and delay two ranks train in network namespaces, rank 0 under `mansard run`. Printed are the verdict, the
busbw beside the set rate, latency and bandwidth of the fit, and the time of a step predicted at the other rates beside
the one that was measured there. Needs root and iproute2:

    python benchmarks/network_namespaces/run.py [--ranks 2] [--json FILE] [--keep FOLDER]

Beside each stands what one plain TCP connection with no collective over it carries in the same network, and a run
without any limit, where the processors' own copies are all there is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import namespaces  # noqa: E402

RATES = (0.1e9, 0.3e9, 1e9)
DELAYS = (0.0, 5e-3)


def diagnosed(
    net: namespaces.Network, words: list[str], *, folder: Path, ceilings: Path | None, keep: Path | None = None,
    limit_s: float = 240.0,
) -> dict[str, Any]:  # fmt: skip
    """Train on all ranks, rank 0 as a guest of `mansard run`, and return its document."""
    out = folder / "run-0.json"
    train = [str(HERE / "train.py"), *words]
    more = ["--ceilings", str(ceilings)] if ceilings is not None else []
    more += ["--keep", str(keep)] if keep is not None else []
    mansard = [sys.executable, "-m", "mansard", "run", "-q", "--force", "-o", str(folder / "run-{rank}.json"), *more, *train]
    ranks = [mansard, *[[sys.executable, *train]] * (len(net.names) - 1)]
    done = namespaces.run_ranks(net, ranks, limit_s=limit_s)
    for rank, result in enumerate(done):
        if result.returncode not in (0, 3):
            raise RuntimeError(f"rank {rank} ended with {result.returncode}: {result.stderr[-1000:]}")
    document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


def steps_for(rate: float, width: int) -> int:
    """Return enough steps for about ten seconds of training."""
    return max(24, min(60, int(8.0 * min(rate, 1e9) / 8.0 / (2 * 4 * width * width))))


def plain_bytes_per_s(net: namespaces.Network) -> float:
    """Return what one TCP connection from rank 1 to rank 0 carries, between an eighth and the end of about a second [B/s]."""
    size = int(min(net.bytes_per_s, 1e9))
    code = [str(HERE / "plain.py"), net.address(0), str(size)]
    done = namespaces.run_ranks(net, [[sys.executable, *code, str(rank)] for rank in (0, 1)], limit_s=60.0)
    return float(done[0].stdout)


def measured(ranks: int, width: int, ceilings: Path | None, keep: Path | None) -> list[dict[str, Any]]:
    """Return a row for each rate and delay, and one without a limit."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for delay in DELAYS:
            for rate in RATES if delay else (*RATES, math.inf):
                words = [
                    "--how",
                    "all_reduce",
                    "--layers",
                    "1",
                    "--hidden",
                    str(width),
                    "--steps",
                    str(steps_for(rate, width)),
                ]
                kept = keep / f"{rate / 1e6:g}mbit_{delay * 1e3:g}ms" if keep is not None else None
                with namespaces.network(ranks, rate, delay) as net:
                    plain = plain_bytes_per_s(net)
                    document = diagnosed(net, words, folder=Path(scratch), ceilings=ceilings, keep=kept)
                use, verdict = document["receipt"]["network"], document["verdict"]
                rows.append({"rate": rate / 8.0, "delay": delay, "bound": verdict["bound"], "plain": plain, **use})
                print(f"  {rate / 1e9:g} Gbit/s, {delay * 1e3:g} ms: {verdict['bound']}", file=sys.stderr)
    return rows


def predicted(row: dict[str, Any], bytes_per_s: float) -> float:
    """Return the step of a row at another rate, by the same arithmetic as the diagnosis [s]."""
    from mansard.core import Unknown
    from mansard.diagnose.network import NetworkUse

    use = NetworkUse(
        link=row["link"], calls=row["calls_per_step"], bus_bytes=row["bus_bytes_per_step"], busy_s=row["busy_s"],
        exposed_s=row["exposed_s"], step_s=row["step_s"], fit=Unknown("not needed"),
        link_bytes_per_s=row["link_bytes_per_s"], rate_from=row["link_rate_from"],
    )  # fmt: skip
    return use.step_at_s(bytes_per_s)


def table(rows: list[dict[str, Any]]) -> str:
    """Return both tables in Markdown."""
    lines = [
        "| set rate | delay | plain TCP | verdict | busbw of the step | fit: latency | fit: bandwidth | of the set rate | dominated by | step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        alpha, beta = r["fit"].get("alpha_s"), r["fit"].get("beta_bytes_per_s")
        known = isinstance(beta, float)
        ratio = f"{beta / r['rate']:.2f}" if known else "?"
        lines.append(
            f"| {r['rate'] * 8e-9:g} Gbit/s = {r['rate'] / 1e6:.4g} MB/s | {r['delay'] * 1e3:g} ms | {r['plain'] / 1e6:.4g} MB/s | {r['bound']} "
            f"| {r['busbw_bytes_per_s'] / 1e6:.4g} MB/s | {f'{alpha * 1e3:.2f} ms' if known else '?'} "
            f"| {f'{beta / 1e6:.4g} MB/s' if known else '?'} | {ratio} "
            f"| {r['dominated_by']} | {r['step_s'] * 1e3:.1f} ms |"
        )
    lines += ["", "| from | to | delay | predicted step | measured step | error |", "|---|---|---|---|---|---|"]
    for a in rows:
        for b in rows:
            if a["delay"] == b["delay"] and a["rate"] != b["rate"] and not math.isinf(b["rate"]):
                step = predicted(a, b["rate"])
                lines.append(
                    f"| {a['rate'] * 8e-9:g} Gbit/s | {b['rate'] * 8e-9:g} Gbit/s | {a['delay'] * 1e3:g} ms "
                    f"| {step * 1e3:.1f} ms | {b['step_s'] * 1e3:.1f} ms | {step / b['step_s'] - 1.0:+.1%} |"
                )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--width", type=int, default=1024, help="gradients are two matrices of width^2 and two biases")
    parser.add_argument(
        "--ceilings", type=Path, help="ceilings.json of this machine; without it they are measured first"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    args = parser.parse_args()
    why = namespaces.missing()
    if why:
        print(f"not run: {why}", file=sys.stderr)
        return 4
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    rows = measured(args.ranks, args.width, args.ceilings, args.keep)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
