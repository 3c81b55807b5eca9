"""Groups of rows and distinct values against the definitions, on random columns with few, many and negative values."""

from __future__ import annotations

import numpy as np
import pytest

from mansard.core.grouping import distinct, groups


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_the_rows_as_tuples(seed: int) -> None:
    r = np.random.default_rng(seed)
    size = int(r.integers(1, 400))
    columns = [
        r.integers(-1, 3, size), r.integers(-(2**40), 2**40, size) // int(r.choice([1, 2**39])), np.full(size, 7),
        r.integers(0, 2, size).astype(np.int8),
    ]  # fmt: skip
    first, group = groups(columns)
    rows = list(zip(*(c.tolist() for c in columns), strict=True))
    kinds = sorted(set(rows))
    assert [rows[i] for i in first.tolist()] == kinds
    assert [kinds[g] for g in group.tolist()] == rows
    assert first.tolist() == [rows.index(kind) for kind in kinds]


def test_no_rows_have_no_groups() -> None:
    first, group = groups([np.zeros(0, dtype=np.int64)])
    assert first.size == group.size == 0


def test_distinct_values_of_several_arrays() -> None:
    assert distinct(np.array([3, 3, -1]), np.array([2, 3])).tolist() == [-1, 2, 3]
    assert distinct().size == 0
