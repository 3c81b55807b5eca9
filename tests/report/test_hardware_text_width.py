"""Receipts of products fit the terminal, and nothing of them is lost there."""

from __future__ import annotations

import pytest

from mansard.hardware.catalogue import load
from mansard.hardware.describe import show_document
from mansard.report.hardware_text import show_lines


@pytest.mark.parametrize("name", ["h100-sxm", "mi250x", "tpu-v5e", "epyc-9654"])
def test_a_product_fits_eighty_columns_and_keeps_every_word(name):
    document = show_document(load(name))
    whole, fitted = show_lines(document), show_lines(document, width=80)
    assert max(map(len, fitted)) <= 80 < max(map(len, whole))
    assert " ".join(fitted).split() == " ".join(whole).split()
