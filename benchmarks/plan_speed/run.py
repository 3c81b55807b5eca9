"""How fast the sharding search is: every plan of Llama 405B on 1,024 H100, built, pruned by memory, timed and judged.

    python benchmarks/plan_speed/run.py [--repeat N]

Target: 100,000 plans in under 10 s on two cores. Printed are the plans, those that fit, and the seconds of each part; the
whole includes the choice under ten shifted ceilings, which times every plan again.
"""

from __future__ import annotations

import argparse
import time

from mansard.hardware import load
from mansard.hardware.fabrics import fabric_of, parse_shape
from mansard.plan.shard.efficiency import published
from mansard.plan.shard.job import Where, Work
from mansard.plan.shard.search import Aim, choose, grid_of
from mansard.plan.shard.space import Space
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model


def main() -> None:
    """Search, several times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    fabric = fabric_of(load("h100-sxm"), parse_shape("128:8"), network_bytes_per_s=50e9)
    where = Where(
        machine=load_machine("h100-sxm"),
        fabrics={1024: fabric},
        efficiency=published("h100-sxm", ("bf16",), nvlink=True),
    )
    space = Space(devices=(1024,), precision=("bf16", "fp8"))
    work = Work(phase="train", seq=8192, batch=2048)
    for _ in range(args.repeat):
        begin, cpu = time.perf_counter(), time.process_time()
        grid = grid_of(load_model("llama-3.1-405b"), work, where, space)
        built = time.perf_counter()
        alone = choose(grid, Aim(uncertain_ratio=0.0))
        chosen = time.perf_counter()
        found = choose(grid, Aim())
        end = time.perf_counter()
        assert found.best == alone.best
        print(
            f"{found.plans:,} plans, {found.fitting:,} fit: built in {built - begin:.2f} s, best found in {chosen - built:.2f} s, "
            f"with ten shifted ceilings in {end - chosen:.2f} s; {end - begin:.2f} s wall, {time.process_time() - cpu:.2f} s of CPU; "
            f"best {found.best.layout}"  # type: ignore[union-attr]
        )


if __name__ == "__main__":
    main()
