"""Memory bandwidth: every access mix at every size, per core and on all cores, and the sweep over the working set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core import dtype_bytes
from mansard.measure.benchmarks.entry import Entry, chosen, missing_package
from mansard.measure.benchmarks.memory_calls import prepare
from mansard.measure.benchmarks.memory_mixes import (
    DEVICE_ID,
    DTYPE,
    IMPLEMENTATIONS,
    OP_TYPE,
    PAGE,
    SIZE,
    STORE,
    THREADS,
    excuse_of,
    mix_of,
    work_of,
)
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Waived, Where, Work


def _work(params: Params, where: Where) -> Work:
    return work_of(params, chosen(params, IMPLEMENTATIONS), where)


def _copy(params: Params) -> dict[str, Any]:
    return {**params, "op_type": "copy", "size": params["num_elements"]}


_NUM_ELEMENTS = dataclasses.replace(SIZE, name="num_elements", aliases=("size",))

HBM = Entry(
    name="hbm_bandwidth",
    area="memory",
    parameters=(OP_TYPE, SIZE, DEVICE_ID, DTYPE, PAGE, STORE, THREADS),
    implementations=IMPLEMENTATIONS,
    summary="memory bandwidth of one access mix; small sizes are cache, and are labelled so",
    count=_work,
    make=prepare,
    excuse=excuse_of,
)
COPY = Entry(
    name="single_device_hbm_copy",
    aliases=("single_chip_hbm_copy",),
    area="memory",
    parameters=(_NUM_ELEMENTS, DEVICE_ID, DTYPE, PAGE, STORE, THREADS),
    implementations=IMPLEMENTATIONS,
    summary="memory bandwidth of a copy",
    count=lambda params, where: _work(_copy(params), where),
    make=lambda params, impl, where: prepare(_copy(params), impl, where),
    excuse=lambda params, impl, where: excuse_of(_copy(params), impl, where),
)

SWEEP_PARAMETERS = (
    dataclasses.replace(OP_TYPE, default="read"),
    Parameter(name="start", kind="int", default=8 * 2**10, minimum=1024, text="smallest working set [B]"),
    Parameter(name="end", kind="int", default=256 * 2**20, minimum=1024, text="largest working set [B]"),
    Parameter(name="per_doubling", kind="int", default=2, minimum=1, text="points per doubling of the working set"),
    Parameter(name="working_set_bytes", kind="int", default=0, minimum=0, text="one working set [B]; 0 sweeps"),
    dataclasses.replace(DTYPE, default="f32"),
    PAGE,
    STORE,
    dataclasses.replace(THREADS, default=1),
)


def sweep_sizes(start: int, end: int, per_doubling: int) -> list[int]:
    """Return working sets from `start` to `end`, both included, whole KiB [B].

    >>> sweep_sizes(8192, 32768, 2)
    [8192, 11264, 16384, 22528, 32768]
    """
    sizes: list[int] = []
    step = 0
    while (size := start * 2 ** (step / per_doubling)) < end * 0.999:
        sizes.append(max(1, int(size) // 1024) * 1024)
        step += 1
    return sorted({*sizes, end})


@dataclass(frozen=True, slots=True)
class WorkingSetSweep:
    """Bandwidth over the working set; one entry of it is a point for each size."""

    name: str = "memory_sweep"
    aliases: tuple[str, ...] = ("working_set_sweep",)
    area: str = "memory"
    parameters: tuple[Parameter, ...] = SWEEP_PARAMETERS
    implementations: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"native": "native", "numpy": "numpy", "jax": "jax", "torch": "torch"}
    )
    summary: str = "bandwidth over the working set, each point with its level; the cliffs say where a cache really ends"

    def _one(self, params: Params) -> dict[str, Any]:
        _, mix = mix_of(params)
        whole = int(params["working_set_bytes"]) or int(params["start"])
        per_element = mix.arrays * dtype_bytes(params["dtype"]) + (4.0 if mix.indices else 0.0)
        return {**params, "size": max(1, int(whole / per_element)), "device_id": 0}

    def expand(self, params: Params) -> Sequence[Params]:
        """Return one point for each working set."""
        if params["working_set_bytes"]:
            return [params]
        sizes = sweep_sizes(int(params["start"]), int(params["end"]), int(params["per_doubling"]))
        return [{**params, "working_set_bytes": size} for size in sizes]

    def work(self, params: Params, where: Where) -> Work:
        """Return the work of one pass; any level is right."""
        return work_of(self._one(params), chosen(params, self.implementations), where, level=None)

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this working set cannot be swept here, or None."""
        return missing_package(self.implementations[impl]) or excuse_of(self._one(params), impl, where)

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Return one pass over this working set ready to be timed."""
        return prepare(self._one(params), impl, where)


BENCHMARKS = (HBM, COPY, WorkingSetSweep())
