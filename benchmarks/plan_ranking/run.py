"""Does the search rank plans as measurements do? Public runs in which one model was divided in several ways on one machine.

    python benchmarks/plan_ranking/run.py DATA [--efficiency published|bound]

DATA holds `measured_llm_runs.csv`, `measured_serving.csv` and `configs/`. Each plan is predicted alone, as `mansard plan shard`
would time it, and ranked within its group: the same model, machine, precision, engine version, lengths and load. Printed are
Kendall's tau (b) of each group's ranking, whether the measured best is among the predicted three best, and the error of the
predicted times. Nothing is fitted to these runs.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from scipy.stats import kendalltau

from mansard.core.errors import MansardError
from mansard.hardware import load
from mansard.hardware.fabrics import fabric_of, parse_shape
from mansard.plan.shard import serving, training_step
from mansard.plan.shard.efficiency import BOUND, published
from mansard.plan.shard.job import Where, Work
from mansard.plan.shard.search import grid_of
from mansard.plan.shard.space import Space
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model
from mansard.workload.records import Model

#: Devices of a node, and what one device has into the network, one way: the ports that the vendors' systems are sold with.
NODES = {
    "h100-sxm": (8, 50e9), "h200": (8, 50e9), "b200": (8, 50e9), "b300": (8, 100e9), "gb200": (64, 50e9),
    "gb300": (64, 100e9), "a100-sxm-80gb": (8, 25e9), "a100-sxm-40gb": (8, 25e9),
}  # fmt: skip
SERVED = {
    "deepseek-ai/DeepSeek-R1": "deepseek-ai--DeepSeek-R1", "deepseek-ai/DeepSeek-V3": "deepseek-ai--DeepSeek-V3",
    "openai/gpt-oss-120b": "openai--gpt-oss-120b", "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "moonshotai/Kimi-K2.5": "moonshotai--Kimi-K2.5", "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "Qwen/Qwen3.5-397B-A17B": "Qwen--Qwen3.5-397B-A17B", "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B", "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai--DeepSeek-R1",
    "nvidia/Qwen3-32B-NVFP4": "Qwen--Qwen3-32B",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured plan; `group` is what it has in common with others, `plan` what differs."""

    kind: str
    group: tuple[str, ...]
    plan: tuple[tuple[str, object], ...]
    devices: int
    measured_s: float


def public_runs() -> ModuleType:
    """The readers of the training rows, which the tests of predictions use."""
    path = Path(__file__).resolve().parents[2] / "tests" / "predict" / "public_runs.py"
    spec = importlib.util.spec_from_file_location("public_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training_runs(data: Path, left: Counter[str]) -> list[Run]:
    """Training rows with their plans; seconds of one token on one device."""
    public, out = public_runs(), []
    for row in csv.DictReader((data / "measured_llm_runs.csv").open(encoding="utf-8", newline="")):
        if row["kind"] != "train":
            continue
        rate = public.number(row["tok_s_per_device"])
        system = public.MACHINES.get(row["hardware"])
        if rate is None or system not in NODES or not row["n_devices"].isdigit() or not row["global_batch"].isdigit():
            left["training: no rate, devices, batch, or a machine on no record"] += 1
            continue
        ranks = dict(re.findall(r"(FSDP|TP|PP|CP|VP|EP)=(\d+)", row["parallelism"]))
        full = row["parallelism"] in ("FULL_SHARD", "SHARD_GRAD_OP")
        if not ranks and not full:
            left["training: the plan is not stated in full"] += 1
            continue
        if not row["micro_batch"].isdigit():
            left["training: no micro-batch"] += 1
            continue
        zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}.get(row["parallelism"], 3 if ranks.get("FSDP", "0") != "0" else 1)
        plan = {
            "tp": int(ranks.get("TP", 1)), "pp": int(ranks.get("PP", 1)), "cp": int(ranks.get("CP", 1)),
            "ep": int(ranks.get("EP", 1)), "chunks": int(ranks.get("VP", 1)), "zero": zero, "micro": int(row["micro_batch"]),
            "recompute": "full" if row["act_ckpt"] in ("True", "full") else "none", "batch": int(row["global_batch"]),
        }  # fmt: skip
        group = (row["model"], row["arch_notes"] if full else "", system, row["n_devices"], row["precision"],
                 str(public.seq_of(row)))  # fmt: skip
        out.append(
            Run(
                kind="train",
                group=group,
                plan=tuple(plan.items()),
                devices=int(row["n_devices"]),
                measured_s=1.0 / rate,
            )
        )
    return out


def serving_runs(data: Path, left: Counter[str]) -> list[Run]:
    """Serving rows of one pool of devices: seconds per output token."""
    out = []
    for row in csv.DictReader((data / "measured_serving.csv").open(encoding="utf-8", newline="")):
        if row["mode"] != "agg":
            left["serving: prefill and decode on different devices"] += 1
            continue
        load_at = re.search(r"concurrency=(\d+)", row["silicon_data_source"])
        if row["model_path"] not in SERVED or load_at is None:
            left[f"serving: no configuration of {row['model_path']}" if load_at else "serving: no concurrency"] += 1
            continue
        tp, pp, dp, moe_tp, ep = (
            max(1, int(row[k] or 1)) for k in ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        )
        if moe_tp > 1 and ep > 1:
            # Their device counts contradict rows of the same measurement: both products and single counts occur.
            left["serving: experts divided both ways, devices ambiguous"] += 1
            continue
        narrow = row["gemm_quant_mode"] or row["precision"] or "fp8"
        precision = "fp4" if "fp4" in narrow else "int4" if "int4" in narrow else "bf16" if narrow == "bf16" else "fp8"
        if row["model_path"].startswith("openai/"):
            precision = serving.CHECKPOINT
        group = (row["model_path"], row["system"], precision, row["backend"], row["backend_version"], row["isl"], row["osl"],
                 load_at[1])  # fmt: skip
        out.append(
            Run(
                kind="serve", group=group, plan=(("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep)), devices=tp * pp * dp,
                measured_s=float(row["silicon_tpot_ms"]) / 1e3,
            )
        )  # fmt: skip
    return out


@lru_cache(maxsize=64)
def where_of(system: str, devices: int, precision: str, efficiency: str) -> Where:
    """A machine with its network."""
    node, rate = NODES[system]
    shape = str(devices) if devices <= node else f"{devices // node}:{node}"
    reached = published(system, (precision,), nvlink=True) if efficiency == "published" else BOUND
    return Where(
        machine=load_machine(system), fabrics={devices: fabric_of(load(system), parse_shape(shape), network_bytes_per_s=rate)},
        efficiency=reached,
    )  # fmt: skip


def predicted_s(run: Run, model: Model, efficiency: str) -> float:
    """The time of one plan, as the search times it, whether or not it fits."""
    plan = dict(run.plan)
    ranks = {k: (plan[k],) for k in ("tp", "pp", "ep")}
    if run.kind == "train":
        _, _, system, _, precision, seq = run.group
        few = public_runs().narrow(precision) or "bf16"
        work = Work(phase="train", seq=int(seq), batch=plan["batch"])
        space = Space(
            devices=(run.devices,), cp=(plan["cp"],), micro=(plan["micro"],), virtual=(plan["chunks"],),
            zero=(plan["zero"],), recompute=(plan["recompute"],), precision=(few,), uneven=True, **ranks,
        )  # fmt: skip
        grid = grid_of(model, work, where_of(system, run.devices, few, efficiency), space)
        if not len(grid.rows):
            raise ValueError("; ".join(grid.refusals.counts))
        step = float(training_step.step_of(grid, grid.rows)["step_s"][0])
        return step * run.devices / (plan["batch"] * int(seq))
    _, system, precision, _, _, prompt, answer, at_once = run.group
    slug = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300"}.get(system, system)
    work = Work(phase="serve", prompt=int(prompt), context=int(prompt) + int(answer) // 2, dtype="bf16")
    space = Space(
        devices=(run.devices,), precision=(precision,), concurrency=(-(-int(at_once) // plan["dp"]) * plan["dp"],), uneven=True,
        **ranks,
    )  # fmt: skip
    grid = grid_of(model, work, where_of(slug, run.devices, precision, efficiency), space)
    if not len(grid.rows):
        raise ValueError("; ".join(grid.refusals.counts))
    return float(serving.step_of(grid, grid.rows)["step_s"][0])


def grouped(runs: list[Run], *, by_devices: bool) -> dict[tuple[str, ...], dict[Run, float]]:
    """Groups of two plans or more; a plan that was measured several times counts with its median."""
    found: dict[tuple[str, ...], dict[tuple[object, ...], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        group = (*run.group, str(run.devices)) if by_devices else run.group
        found[group][run.plan].append(run)
    return {
        group: {same[0]: statistics.median(r.measured_s for r in same) for same in plans.values()}
        for group, plans in found.items() if len(plans) > 1
    }  # fmt: skip


def judge(
    name: str, groups: dict[tuple[str, ...], dict[Run, float]], known: dict[Run, float], *, verbose: bool, cost: bool = False
) -> None:  # fmt: skip
    """Print how the rankings agree: by time, or by the device seconds of a token."""
    taus, best, hard, concordant, pairs = [], [], [], 0, 0
    for group, plans in sorted(groups.items()):
        both = [
            (known[r] * (r.devices if cost else 1), m * (r.devices if cost else 1))
            for r, m in plans.items()
            if r in known
        ]
        if len(both) < 2:
            continue
        tau = float(kendalltau([p for p, _ in both], [m for _, m in both]).statistic)
        if tau != tau:
            tau = 0.0  # every plan predicted alike: no ranking at all
        taus.append(tau)
        top = sorted(range(len(both)), key=lambda i: both[i][0])[:3]
        hit = min(range(len(both)), key=lambda i: both[i][1]) in top
        best.append(hit)
        if len(both) > 3:
            hard.append(hit)
        for i in range(len(both)):
            for j in range(i):
                pairs += 1
                concordant += (both[i][0] - both[j][0]) * (both[i][1] - both[j][1]) > 0
        if verbose:
            print(f"    {tau:+.2f} {len(both)} {' '.join(group)}")
    if not taus:
        print(f"  {name}: no groups")
        return
    many = [t for t, g in zip(taus, sorted(groups), strict=False) if len(groups[g]) > 2]
    print(
        f"  {name}: {len(taus)} groups, {pairs} pairs; tau mean {statistics.mean(taus):.2f}, median {statistics.median(taus):.2f}"
        + (f", groups of 3 or more {statistics.mean(many):.2f}" if many else "")
        + f"; {concordant / pairs:.0%} of pairs in order; best in top 3: {sum(best)}/{len(best)}"
        + (f", of groups of 4 or more {sum(hard)}/{len(hard)}" if hard else "")
    )


def main() -> None:
    """Predict every run of a group, and compare the rankings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--efficiency", choices=["published", "bound"], default="published")
    parser.add_argument("-v", "--verbose", action="store_true", help="every group")
    args = parser.parse_args()
    left: Counter[str] = Counter()
    public = public_runs()
    runs = training_runs(args.data, left) + serving_runs(args.data, left)
    wanted = {r for by in (False, True) for plans in grouped(runs, by_devices=by).values() for r in plans}
    models: dict[tuple[str, str, str], Model] = {}
    known: dict[Run, float] = {}
    for run in runs:
        if run not in wanted or run in known:
            continue
        train = run.kind == "train"
        key = (run.group[0], run.group[1] if train else "", run.group[5] if train else "")
        try:
            if key not in models:
                config = (
                    public.config_of(args.data.parent, key[0], key[1], int(key[2])) if train
                    else args.data / "configs" / f"{SERVED[key[0]]}_config.json"
                )  # fmt: skip
                if config is None:
                    raise ValueError(f"no configuration of {key[0]}")
                models[key] = load_model(config)
            known[run] = predicted_s(run, models[key], args.efficiency)
        except (MansardError, ValueError) as error:
            left[f"{run.kind}: {error}"] += 1
    print(f"efficiency: {args.efficiency}")
    for kind in ("train", "serve"):
        own = [r for r in runs if r.kind == kind]
        errors = sorted(
            (known[r] / m - 1.0, m)
            for plans in grouped(own, by_devices=False).values()
            for r, m in plans.items()
            if r in known
        )
        if errors:
            e = [x for x, _ in errors]
            print(
                f"{kind}: {len(e)} plans; predicted over measured: median {statistics.median(e) + 1:.2f}, middle half "
                f"{e[len(e) // 4] + 1:.2f} to {e[3 * len(e) // 4] + 1:.2f}, mean absolute error {statistics.mean(map(abs, e)):.0%}"
            )
        judge("any number of devices", grouped(own, by_devices=False), known, verbose=args.verbose)
        judge("the same number of devices", grouped(own, by_devices=True), known, verbose=args.verbose)
        if kind == "serve":
            judge("device seconds of a token", grouped(own, by_devices=False), known, verbose=args.verbose, cost=True)
            # What ranking by the number of devices alone would give: more are quicker, fewer are cheaper.
            count = {r: 1.0 / r.devices for r in known}
            judge("baseline, more devices are quicker", grouped(own, by_devices=False), count, verbose=False)
            fewer = dict.fromkeys(known, 1.0)
            judge(
                "baseline, fewer devices are cheaper", grouped(own, by_devices=False), fewer, verbose=False, cost=True
            )
    print("left out:")
    for reason, n in left.most_common():
        print(f"  {n:5d} {reason[:140]}")


if __name__ == "__main__":
    main()
