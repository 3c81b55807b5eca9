"""Names in columns: what differs never looks the same, what is the same does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.report.trace_layout import fitted, table
from mansard.report.trace_names import apart, labels

_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
_SIGMOID = _ADD.replace("CUDAFunctor_add<float>", "sigmoid_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}")


def test_names_that_share_a_short_name_get_their_arguments() -> None:
    found = labels([_ADD, _SIGMOID, "void flash::flash_fwd_kernel<Traits<(int)128>>(flash::Params)", _ADD])
    assert found[0] == "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >" == found[3]
    assert "sigmoid_kernel_cuda" in found[1]
    assert found[2] == "flash_fwd_kernel"


@pytest.mark.parametrize("width", [22, 30, 60])
def test_a_table_tells_kernels_apart(width: int) -> None:
    names = labels(
        [_ADD, _SIGMOID, _ADD.replace("float", "int"), "gemm_" + "x" * 60 + "_tn", "gemm_" + "x" * 60 + "_nn"]
    )
    cut = apart(names, width)
    assert len(set(cut)) == 5
    assert max(map(len, cut)) <= width


def test_the_column_of_a_narrow_page_tells_them_apart() -> None:
    rows = [[f"{'kernel_' * 9}{letter}", "1 ms"] for letter in "abc"]
    lines = fitted(table(["name", "time"], rows), 40)
    assert len({line.split()[0] for line in lines[1:]}) == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab_<", min_size=1, max_size=50), unique=True, max_size=6), st.integers(16, 40))
def test_no_text_is_longer_than_its_column(texts: list[str], width: int) -> None:
    cut = apart(texts, width)
    assert all(len(c) <= width for c in cut)
    assert all(
        c == t for c, t in zip(cut, texts, strict=True) if len(t) <= width and cut.count(c) == 1 and "..." not in c
    )
