"""From a ceiling to what kernels reach of it: published curves, each with its source, or nothing at all.

A plan is ranked by expected times, not by bounds: dividing a matrix over more devices makes each product smaller and
each byte of a message dearer, and a bound sees neither. Three facts are used, all published, none fitted to the runs that
the ranking is checked against (docs/plan.md):

- what the best product and the best copy reach of the peak of a device,
- how far below that a kernel stays that would ideally last only microseconds (one curve for products, one for copies),
- what the best collective reaches of a link, and what its shortest message costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mansard.core.demand import Number
from mansard.core.errors import UsageError

#: Ideal time of a product [s] -> time it takes [s], both relative to the best rate. Products m = n = k of 128 to 32768 on one
#: core of a TPU v7x: 2.59, 18.29, 105.08, 349.73, 679.28, 892.94, 950.13, 956.38 TFLOP/s.
_GEMM_EDGE = (128, 256, 512, 1024, 2048, 4096, 16384, 32768)
_GEMM_RATE = (2.59e12, 18.29e12, 105.08e12, 349.73e12, 679.28e12, 892.94e12, 950.13e12, 956.38e12)
GEMM_CURVE: tuple[tuple[float, ...], tuple[float, ...]] = (
    tuple(2.0 * n**3 / _GEMM_RATE[-1] for n in _GEMM_EDGE),
    tuple(2.0 * n**3 / r for n, r in zip(_GEMM_EDGE, _GEMM_RATE, strict=True)),
)
#: The same for copies of 2 MiB to 8 GiB on a TPU v7x chip, bytes read and written.
_COPY_MIB = (2, 4, 16, 64, 128, 1024, 8192)
_COPY_RATE = (2759e9, 4499e9, 5515e9, 6194e9, 6353e9, 6397e9, 6421e9)
COPY_CURVE: tuple[tuple[float, ...], tuple[float, ...]] = (
    tuple(2.0 * n * 2**20 / _COPY_RATE[-1] for n in _COPY_MIB),
    tuple(2.0 * n * 2**20 / r for n, r in zip(_COPY_MIB, _COPY_RATE, strict=True)),
)
_CURVES = "accelerator-microbenchmarks, Ironwood guides: GEMM and HBM copy by size on TPU v7x"
_MAMF = "stas00/ml-engineering, compute/accelerator: best product found, over the dense peak"

#: Product -> element type -> the best product found over the dense peak. f16 is bf16.
MATMUL: dict[str, dict[str, float]] = {
    "a100-sxm-40gb": {"bf16": 0.869}, "a100-sxm-80gb": {"bf16": 0.869}, "a100-pcie-80gb": {"bf16": 0.811},
    "h100-sxm": {"bf16": 0.803}, "h200": {"bf16": 0.803, "fp8": 0.734}, "gh200-96gb": {"bf16": 0.838},
    "b200": {"bf16": 0.776, "fp8": 0.763}, "b300": {"bf16": 0.786, "fp8": 0.745}, "gb200": {"bf16": 0.729},
    "mi300x": {"bf16": 0.511}, "gaudi2": {"bf16": 0.969}, "gaudi3": {"bf16": 0.741},
    "tpu-v6e": {"bf16": 0.901}, "tpu-v7x": {"bf16": 0.829},
}  # fmt: skip
#: Product -> best busbw of a ring all-reduce, or of a permute on a torus, over the rate of the link.
LINK: dict[str, tuple[float, str]] = {
    "h100-sxm": (0.82, "8 H100: ring 365 to 370 of 450 GB/s (nccl issue 1455, nccl-tests issue 212)"),
    "h200": (0.81, "8 H200, NVLS off: 363 to 366 of 450 GB/s (stas00/ml-engineering)"),
    "b200": (0.758, "8 B200, ring: 682 of 900 GB/s (stas00/ml-engineering)"),
    "mi300x": (0.698, "8 MI300X: 312.9 of 448 GB/s (stas00/ml-engineering)"),
    "tpu-v5p": (0.959, "permute, 86.3 of 90 GB/s (marin issue 6736)"),
    "tpu-v6e": (0.964, "permute, 86.8 of 90 GB/s (marin issue 6736)"),
}
#: The shortest all-reduce of 8 GPUs behind an NVLink switch, 4 B to 1 MiB [s].
NVLINK_ALPHA_S = 20e-6
_ALPHA = "8 H100, 4 B to 1 MiB: 20 to 25 us (marin issue 6736)"
#: A copy on a TPU v7x: 6421 of 7380 GB/s.
_MEMORY = 6421.0 / 7380.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What kernels and messages reach of the ceilings.

    Args:
        name: `bound` (all of it) or `published`.
        matmul: Element type -> share of its peak; `*` for every type.
        memory_ratio, link_ratio, network_ratio: Shares of the bandwidths of memory, link and network.
        curves: Whether short kernels fall below those shares.
        alpha_s: Cost of the shortest message where the network has none on record [s]; None for none.
        sources: Where the figures are from.
        missing: What has no figure on record and is taken at its ceiling.
    """

    name: str
    matmul: Mapping[str, float] = field(default_factory=lambda: {"*": 1.0})
    memory_ratio: float = 1.0
    link_ratio: float = 1.0
    network_ratio: float = 1.0
    curves: bool = False
    alpha_s: float | None = None
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def matmul_ratio(self, dtype: str) -> float:
        """Return the share of the peak that the best product of a type reaches."""
        return self.matmul.get(family(dtype), self.matmul.get("*", 1.0))

    def product_s(self, ideal_s: Number) -> Number:
        """Return how long a product takes that would take `ideal_s` at the best rate [s]."""
        return stretched(ideal_s, GEMM_CURVE) if self.curves else ideal_s

    def copy_s(self, ideal_s: Number) -> Number:
        """Return how long a kernel takes that would take `ideal_s` at the best bandwidth [s]."""
        return stretched(ideal_s, COPY_CURVE) if self.curves else ideal_s


def family(dtype: str) -> str:
    """Return the name that types share which run at one rate.

    >>> family("f16"), family("f8_e4m3"), family("fp8")
    ('bf16', 'fp8', 'fp8')
    """
    if dtype.startswith(("f8", "fp8")):
        return "fp8"
    return "bf16" if dtype == "f16" else dtype


BOUND = Efficiency(name="bound", sources=("every kernel and message at its ceiling: a bound, not an expectation",))


def stretched(ideal_s: Number, curve: tuple[tuple[float, ...], tuple[float, ...]]) -> Number:
    """Return a time by a curve of ideal and real times: straight in logarithms, never decreasing [s].

    Below the curve the real time stays at its first value, beyond it the ratio stays at its last.

    >>> float(stretched(0.5, ((1.0, 10.0), (2.0, 10.0)))), float(stretched(100.0, ((1.0, 10.0), (2.0, 10.0))))
    (2.0, 100.0)
    """
    x = np.asarray(ideal_s, dtype=np.float64)
    xs, ys = np.log(curve[0]), np.log(curve[1])
    with np.errstate(divide="ignore"):
        at = np.log(x)
    real = np.exp(np.interp(at, xs, ys))
    found = np.where(at > xs[-1], x * np.exp(ys[-1] - xs[-1]), real)
    found = np.where(x > 0.0, found, 0.0)
    return found if isinstance(ideal_s, np.ndarray) else float(found)


def published(slug: str, dtypes: tuple[str, ...], *, nvlink: bool = False) -> Efficiency:
    """Return the published figures of a product; what is on no record is taken at its ceiling and named.

    Args:
        slug: Catalogue name.
        dtypes: Element types of the products.
        nvlink: Whether its devices meet behind an NVLink switch.
    """
    known = MATMUL.get(slug)
    if known is None:
        return Efficiency(
            name="bound", sources=BOUND.sources,
            missing=(f"no achieved rate of {slug} is on record, so its times are bounds (--efficiency 0.8 states one)",),
        )  # fmt: skip
    missing = [
        f"no achieved {d} product of {slug} is on record: taken at the share of bf16"
        for d in dict.fromkeys(map(family, dtypes))
        if d not in known
    ]
    link = LINK.get(slug)
    if link is None:
        missing.append(f"no achieved rate of the link of {slug} is on record: taken at its ceiling")
    return Efficiency(
        name="published", matmul={**known, "*": known["bf16"]}, memory_ratio=_MEMORY,
        link_ratio=1.0 if link is None else link[0], curves=True, alpha_s=NVLINK_ALPHA_S if nvlink else None,
        sources=(_MAMF, _CURVES, *((link[1],) if link else ()), *((_ALPHA,) if nvlink else ())),
        missing=tuple(missing),
    )  # fmt: skip


def stated(ratio: float) -> Efficiency:
    """Return one share of compute, memory and links that the user states.

    Raises:
        UsageError: not above 0 and up to 1.
    """
    if not 0.0 < ratio <= 1.0:
        raise UsageError(f"the efficiency is {ratio}, expected a share above 0 and up to 1")
    return Efficiency(
        name="stated", matmul={"*": ratio}, memory_ratio=ratio, link_ratio=ratio, network_ratio=ratio,
        sources=(f"{ratio:g} of every ceiling, as stated",),
    )  # fmt: skip
