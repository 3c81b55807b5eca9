"""Studies of matrix products that are several points: over N, on and off the tile, and over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.measure.benchmarks.entry import Entry, chosen, missing_package
from mansard.measure.benchmarks.gemm_calls import prepare, prepare_renewed
from mansard.measure.benchmarks.gemm_product import (
    IMPLEMENTATIONS,
    SEED,
    SHAPE,
    Product,
    excuse_of,
    product_of,
    types,
    work_of,
)
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Waived, Where, Work

GAPS = ("data_gen_once_block_every_iter", "data_gen_once_noblock", "data_gen_every_iter_block_every_iter")
TILES = (64, 128, 256)  # of the matrix units in use: 128 x 128 and 256 x 256 on TPUs, 64 to 256 on GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A benchmark of square products of which one entry is several points; each is one product.

    Args:
        sizes: The sizes an entry stands for.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    sizes: Callable[[Params], Sequence[int]]
    aliases: tuple[str, ...] = ()
    area: str = "compute"

    @property
    def implementations(self) -> Mapping[str, str]:
        """Implementations and their backends."""
        return IMPLEMENTATIONS

    def expand(self, params: Params) -> Sequence[Params]:
        """Return one point for each size; a size that was given stays alone."""
        return [params] if params["size"] else [{**params, "size": size} for size in self.sizes(params)]

    def work(self, params: Params, where: Where) -> Work:
        """Return the work of the product."""
        return work_of(square(params), chosen(params, IMPLEMENTATIONS), where)

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this size cannot run here, or None."""
        return missing_package(IMPLEMENTATIONS[impl]) or excuse_of(square(params), impl, where)

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Return the product ready to be timed."""
        return prepare(square(params), impl, where, int(params.get("seed") or 0))


def square(params: Params) -> Product:
    """Return the square product of a point."""
    size = int(params["size"] or params.get("base") or params["start"])
    return product_of({**params, "m": size, "k": size, "n": size})


def swept(params: Params) -> list[int]:
    """Return N = start, 2 start, ... with `end` as the last.

    >>> swept({"start": 64, "end": 1000})
    [64, 128, 256, 512, 1000]
    """
    sizes, size = [], int(params["start"])
    while size < int(params["end"]):
        sizes.append(size)
        size *= 2
    return [*sizes, int(params["end"])]


def aligned(params: Params) -> list[int]:
    """Return a size, its neighbours up to the next multiple of every tile, once each.

    >>> aligned({"base": 4000})
    [4000, 4032, 4096]
    """
    base = int(params["base"])
    return sorted({base, *(-(-base // tile) * tile for tile in TILES)})


_SIZE = Parameter(name="size", kind="int", default=0, minimum=0, text="N of one point; 0 is the whole study")

SWEEP = Study(
    name="gemm_sweep",
    aliases=("matmul_sweep",),
    summary="rate over N = 2^k of any implementation, with the fixed cost per call",
    parameters=(
        Parameter(name="start", kind="int", default=64, minimum=1, text="smallest N"),
        Parameter(name="end", kind="int", default=4096, minimum=1, text="largest N"),
        _SIZE,
        *types("f32", None),
        SEED,
    ),
    sizes=swept,
)
ALIGNMENT = Study(
    name="gemm_alignment",
    summary="one size and its paddings to whole tiles of 64, 128 and 256: what padding gains, its extra work included",
    parameters=(
        Parameter(name="base", kind="int", default=4000, minimum=1, text="the size that someone has"),
        _SIZE,
        *types("bf16", None),
        SEED,
    ),
    sizes=aligned,
)


def _throttling(params: Params) -> Product:
    # The suite returns bf16; what libraries cannot narrow stays in its own type.
    dtype = str(params["dtype"])
    return product_of(params, dtype=dtype, out=dtype if dtype in ("f32", "f64") else "i32" if dtype == "i8" else "bf16")


def _with_gaps(params: Params, impl: str, where: Where) -> Prepared:
    """Return the product with the published suite's ways of feeding it: back to back, waited for, or with new data."""
    product, gap, seed = _throttling(params), str(params["gap_strategy"]), int(params.get("seed") or 0)
    if gap == GAPS[1]:
        prepared = prepare(product, impl, where, seed)
    elif gap == GAPS[0]:
        prepared = prepare(product, impl, where, seed)
        back_to_back = prepared.run

        def waited(count: int) -> None:
            for _ in range(count):
                back_to_back(1)

        prepared.run, prepared.chain = waited, None
    else:
        prepared, renew = prepare_renewed(product, impl, where, seed)
        once = prepared.run

        def timed(count: int) -> float:
            total = 0.0
            for _ in range(count):
                renew()  # outside the time, as the suite does it
                start = time.perf_counter()
                once(1)
                total += time.perf_counter() - start
            return total

        prepared.timed, prepared.chain = timed, None
    prepared.facts = {**prepared.facts, "gap_strategy": gap}
    return prepared


def _throttling_excuse(params: Params, impl: str, where: Where) -> Waived | None:
    if params["gap_strategy"] == GAPS[2] and impl in ("native", "naive"):
        return Waived(reason=f"{impl} packs its operands beforehand and takes no new ones", missing="implementation")
    if params["gap_strategy"] == GAPS[0] and IMPLEMENTATIONS[impl] == "native":
        return Waived(reason=f"{impl} always waits for its threads", missing="implementation")
    return excuse_of(_throttling(params), impl, where)


THROTTLING = Entry(
    name="gemm_throttling",
    aliases=("gemm_sustained",),
    area="compute",
    parameters=(
        *SHAPE,
        Parameter(name="dtype", kind="dtype", default="f8_e4m3", text="type of A and B"),
        Parameter(name="gap_strategy", kind="str", default=GAPS[1], choices=GAPS, text="what lies between two calls"),
        SEED,
    ),
    implementations=IMPLEMENTATIONS,
    summary="one product for a long time (min_duration_s): burst against sustained rate",
    count=lambda params, where: work_of(_throttling(params), chosen(params, IMPLEMENTATIONS), where),
    make=_with_gaps,
    excuse=_throttling_excuse,
)

BENCHMARKS = (SWEEP, ALIGNMENT, THROTTLING)
