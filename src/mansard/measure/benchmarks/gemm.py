"""Matrix products: the general one and the published suite's special cases of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mansard.measure.benchmarks.entry import Entry, chosen
from mansard.measure.benchmarks.gemm_calls import prepare
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

FACTORS = (
    Parameter(name="use_scaling_factors", kind="bool", default=False, text="one f32 factor per row and per column"),
    Parameter(name="transpose_a", kind="bool", default=False, text="A lies in memory as (k, m)"),
    Parameter(name="transpose_b", kind="bool", default=False, text="B lies in memory as (n, k)"),
    Parameter(name="alpha", kind="float", default=1.0, text="factor of the product"),
    Parameter(name="beta", kind="float", default=0.0, text="factor of C, which is added; 0 reads no C"),
)
BATCH = Parameter(name="batch", kind="int", default=1, minimum=1, aliases=("b",), text="independent products")
DTYPE = Parameter(name="dtype", kind="dtype", default="bf16", text="type of A and B")


def gemm_entry(
    name: str,
    summary: str,
    parameters: tuple[Parameter, ...],
    product: Callable[[Params], Product],
    aliases: tuple[str, ...] = (),
    area: str = "compute",
) -> Entry:
    """Return a benchmark of one product.

    Args:
        name, summary, parameters, aliases, area: Of the benchmark.
        product: The product that parameters describe.
    """

    def count(params: Params, where: Where) -> Work:
        return work_of(product(params), chosen(params, IMPLEMENTATIONS), where)

    def excuse(params: Params, impl: str, where: Where) -> Waived | None:
        return excuse_of(product(params), impl, where)

    def make(params: Params, impl: str, where: Where) -> Prepared:
        return prepare(product(params), impl, where, int(params.get("seed") or 0))

    return Entry(
        name=name, area=area, parameters=(*parameters, SEED), implementations=IMPLEMENTATIONS, summary=summary, count=count,
        make=make, excuse=excuse, aliases=aliases,
    )  # fmt: skip


def _of(**fixed: Any) -> Callable[[Params], Product]:
    return lambda params: product_of(params, **fixed)


def _multiple_run(params: Params) -> Product:
    # The suite returns bf16 whatever comes in; whole numbers are summed and returned in i32.
    dtype = str(params["dtype"])
    return product_of(params, dtype=dtype, out="i32" if dtype == "i8" else "bf16")


def _same_type(params: Params) -> Product:
    return product_of(params, dtype=params["dtype"])


BENCHMARKS = (
    gemm_entry(
        "gemm_generalized",
        "alpha A B + beta C over shapes, types of inputs, sums and result, transposes, scales and batch",
        (*SHAPE, *types("f8_e4m3", "bf16"), *FACTORS, BATCH),
        product_of,
    ),
    gemm_entry("gemm", "f8 product with a factor per row and column, result bf16", (*SHAPE, *types("f8_e4m3", "bf16")),
               _of(scales=True)),
    gemm_entry("gemm_simple", "f8 product, result bf16", (*SHAPE, *types("f8_e4m3", "bf16")), product_of),
    gemm_entry("gemm_simple_with_dtype", "product of a given type", (*SHAPE, *types("bf16", "bf16")), product_of),
    gemm_entry("gemm_accum", "f8 product with factors added to an f32 matrix", (*SHAPE, *types("f8_e4m3", "f32")),
               _of(scales=True, beta=1.0)),
    gemm_entry("gemm_multiple_run", "product of any type, result bf16", (*SHAPE, DTYPE), _multiple_run),
    gemm_entry("naive_matmul", "one product on one device, result in the type of the inputs", (*SHAPE, DTYPE), _same_type,
               aliases=("single_host_naive_matmul",)),
    gemm_entry("single_device_bmm", "a batch of independent products", (*SHAPE, BATCH, DTYPE), _same_type,
               aliases=("bmm", "multi_host_bmm")),
)  # fmt: skip
