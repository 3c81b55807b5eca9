"""Kernel sums and range projections against NVIDIA's own reports, to the nanosecond."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from mansard.trace.open import open_trace
from mansard.trace.regions import attribute, range_table
from mansard.trace.timeline import Kind

FILES = (
    "2020_rtx8000x2_cudf", "2021_rtx3080_openacc", "2022.1_rtx2070s_pytorch", "2022.4_rtx3090x7_gaussian", "2022.4_t4_4streams",
    "2023.1_rtx3090x4_tensorrt_nvtx", "2023.3_rtx4090_4streams", "2023.3_t4_trisolve_18streams", "2023.4_cpu_nvtx_only",
    "2023.4_reexport_of_2021_rtx3080_openacc", "2025.3_t4_cupy_power_iteration", "2026.2_h100x2_fsdp_1s",
    "2026.2_h100x2_video_train_before",
)  # fmt: skip


def report(folder: Path, name: str) -> list[dict[str, str]]:
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.exists():
            raw = path.read_bytes()
            text = gzip.decompress(raw) if path.suffix == ".gz" else raw
            return list(csv.DictReader(io.StringIO(text.decode())))
    return []


@pytest.mark.parametrize("name", FILES)
def test_equal_to_nsys_stats(shared: Path, name: str) -> None:
    traces = shared / "data" / "traces"
    timeline = open_trace(traces / "nsys" / f"{name}.sqlite")
    folder = traces / "reference" / name

    kernels = timeline.of(Kind.KERNEL)
    total = np.zeros(len(timeline.names), dtype=np.int64)
    np.add.at(total, kernels.name, kernels.duration_ns)
    count = np.bincount(kernels.name, minlength=len(timeline.names))
    ours = {n: (int(total[i]), int(count[i])) for i, n in enumerate(timeline.names) if count[i]}
    theirs = {r["Name"]: (int(r["Total Time (ns)"]), int(r["Instances"])) for r in report(folder, "cuda_gpu_kern_sum")}
    assert ours == theirs

    rows = {(r.name, r.style): r for r in range_table(attribute(timeline), grouped=False)}
    projected = {
        (r["Range"], r["Style"]): tuple(
            int(r[c]) for c in ("Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances", "Total GPU Ops")
        )
        for r in report(folder, "nvtx_gpu_proj_sum")
    }
    with_work = {
        key: (r.projected_total_ns, r.projected_cpu_total_ns, r.with_work, r.ops)
        for key, r in rows.items()
        if r.with_work
    }
    assert with_work == projected
    cpu = {
        (r["Range"], r["Style"]): (int(r["Total Time (ns)"]), int(r["Instances"])) for r in report(folder, "nvtx_sum")
    }
    assert {key: (r.cpu_total_ns, r.instances) for key, r in rows.items()} == cpu
