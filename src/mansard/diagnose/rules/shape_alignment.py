"""Matrix products whose sizes are no multiple of what the matrix unit takes at once.

Needs: the sizes of the products. Rows of 16 bytes are what a GPU's tensor units load (128 bytes are best), 128 elements what a TPU's
matrix unit takes, 64 bytes a vector register of a CPU. A gain needs either measured padding (`gemm_alignment`: the same size, type
and framework) or aligned products of the same type in this run that come nearer to the same ceiling.
Promises: observed time less that of the padded product, its extra work included, at the measured ratio or at the share that the
aligned products reach (modelled). Without either it stays silent: a low share alone has no cause.
Source: NVIDIA, Matrix Multiplication Background User's Guide, tensor core requirements; Jouppi et al., ISCA 2017 (128 x 128 unit).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core import Bound, Grade, is_known
from mansard.core.dtypes import dtype_bytes
from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import MeasuredPoint, Product, product_of
from mansard.diagnose.judge_operators import JudgedOperator

#: Products shorter than this many tiles have a size that padding changes too much to speak of.
_LEAST_SIZE = 16


def tile_elements(case: Case, dtype: str) -> tuple[int, int]:
    """Return what sizes should be multiples of at least, and at best [elements]."""
    size = dtype_bytes(dtype)
    if any("TPU" in name for name in case.trace.devices):
        return 128, 128
    if case.trace.scope == "device":
        return max(1, int(16 / size)), max(1, int(128 / size))
    return max(1, int(64 / size)), max(1, int(64 / size))


def _up(value: int, tile: int) -> int:
    return -(-value // tile) * tile


def shape_alignment(case: Case) -> Proposal | None:
    """Advise on padding the misaligned products that a measurement or this run shows to be slow for it."""
    rows: list[JudgedOperator] = []
    gain = 0.0
    texts: list[str] = []
    measured = True
    products = [(r, p) for r in case.of_category("gemm") if (p := product_of(r.operator)) is not None]
    for row, product in products:
        least, best = tile_elements(case, product.dtype)
        sizes = (product.m, product.k, product.n)
        if min(sizes) < _LEAST_SIZE or all(s % least == 0 for s in sizes) or row.judgement.bound is Bound.LATENCY:
            continue
        to = _padded_ratio(case, product, best)
        by_share = to is None
        after = _by_share(case, row, product, products, best) if to is None else to
        if after is None or after >= 1.0:
            continue
        saved = min(case.per_step_s([row]) * (1.0 - after), case.headroom_s([row]))
        if saved <= 0:
            continue
        measured &= not by_share
        gain += saved
        rows.append(row)
        padded = " x ".join(str(_up(s, best)) for s in sizes)
        texts.append(
            f"{product.m} x {product.k} x {product.n} {product.dtype} padded to {padded} takes {after:.2f} of its time"
        )
    if not rows:
        return None
    return Proposal(
        rule="shape_alignment",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        grade=Grade.MEASURED if measured else Grade.MODELLED,
        text="Pad the matrix products to whole tiles (vocabulary, heads, batch): "
        f"first {rows[0].operator.name} {rows[0].operator.shapes}.",
        evidence=f"{len(rows)} kinds of product, {format_s(case.per_step_s(rows))} a step, are misaligned; {'; '.join(texts[:2])} "
        f"({'measured' if measured else 'modelled from the aligned products of this run'})",
    )


def _padded_ratio(case: Case, product: Product, tile: int) -> float | None:
    """Return measured time of the padded square over that of the size itself; None unless it is this very product."""
    if not product.m == product.k == product.n or product.batch != 1:
        return None

    def of(size: int) -> MeasuredPoint | None:
        return next(
            (p for p in case.facts.points
             if p.benchmark == "gemm_alignment" and p.dtype == product.dtype and p.params.get("size") == size
             and case.trace.framework in (p.backend, "profile")), None,
        )  # fmt: skip

    own, padded = of(product.m), of(_up(product.m, tile))
    if own is None or padded is None or padded.ci95_s[1] >= own.ci95_s[0]:
        return None
    return padded.ci95_s[1] / own.ci95_s[0]


def _by_share(
    case: Case,
    row: JudgedOperator,
    product: Product,
    products: Sequence[tuple[JudgedOperator, Product]],
    tile: int,
) -> float | None:
    """Return the modelled time of the padded product over its own, at the share that aligned products of its size reach."""
    mine, limiting = row.judgement.share_of_ceiling, row.judgement.limiting
    if not is_known(mine) or limiting is None:
        return None
    shares = []
    for other, its in products:
        share, its_limit = other.judgement.share_of_ceiling, other.judgement.limiting
        least, _ = tile_elements(case, its.dtype)
        aligned = all(s % least == 0 for s in (its.m, its.k, its.n))
        if not aligned or its.dtype != product.dtype or not is_known(share) or its_limit is None:
            continue
        alike = 0.25 <= (its.m * its.k * its.n * its.batch) / (product.m * product.k * product.n * product.batch) <= 4.0
        if alike and its_limit.ceiling is limiting.ceiling:
            shares.append(share)
    if not shares:
        return None
    more = 1.0
    for size in (product.m, product.k, product.n):
        more *= _up(size, tile) / size
    return more * mine / max(shares)


RULE = shape_alignment
