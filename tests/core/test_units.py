from __future__ import annotations

import math

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core import UsageError
from mansard.core.units import (
    format_bytes,
    format_bytes_per_s,
    format_flop,
    format_flop_per_s,
    format_hz,
    format_s,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("4.8 TB/s", "bytes_per_s", 4.8e12),
        ("3350 GB/s", "bytes_per_s", 3.35e12),
        ("400 Gbit/s", "bytes_per_s", 50e9),  # 400e9 bits / 8
        ("80 GiB", "bytes", 80 * 2**30),
        ("141 GB", "bytes", 141e9),
        ("989 TFLOP/s", "flop_per_s", 989e12),
        ("1.98 GHz", "hz", 1.98e9),
        ("12.5 us", "s", 12.5e-6),
        ("700 W", "w", 700.0),
        ("1.5 kW", "w", 1500.0),
        ("1e3 FLOP", "flop", 1000.0),
    ],
)
def test_parse(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["400 Gbps", "400 gbps", "400 GBps", "989 TFLOPS", "989 tflops"])
def test_ambiguous_units_are_refused_with_both_readings(text: str) -> None:
    dimension = "flop_per_s" if "lop" in text.lower() else "bytes_per_s"
    with pytest.raises(UsageError) as error:
        parse_quantity(text, dimension)
    assert error.value.code == "ambiguous_unit"
    assert " and for " in error.value.message


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GiB", "bytes_per_s"),
        ("5", "bytes"),
        ("-3 GB", "bytes"),
        ("x GB", "bytes"),
        ("3 GiFLOP", "flop"),
        ("3 ks", "s"),
    ],
)
def test_bad_text_is_refused(text: str, dimension: str) -> None:
    with pytest.raises(UsageError):
        parse_quantity(text, dimension)


def test_parser_agrees_with_pint() -> None:
    registry = pint.UnitRegistry()
    for prefix in ("", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"):
        ours = parse_quantity(f"7 {prefix}B/s", "bytes_per_s")
        theirs = registry.Quantity(7, f"{prefix}byte/second").to("byte/second").magnitude
        assert ours == pytest.approx(theirs, rel=1e-12)


@given(st.floats(min_value=1e-9, max_value=1e17))
def test_format_then_parse_gives_the_number_back_to_three_digits(value: float) -> None:
    assert parse_quantity(format_bytes_per_s(value), "bytes_per_s") == pytest.approx(value, rel=6e-3, abs=1e-6)
    assert parse_quantity(format_bytes(value), "bytes") == pytest.approx(value, rel=6e-3, abs=1e-6)
    assert parse_quantity(format_flop_per_s(value), "flop_per_s") == pytest.approx(value, rel=6e-3, abs=1e-6)
    assert parse_quantity(format_flop(value), "flop") == pytest.approx(value, rel=6e-3, abs=1e-6)


@given(st.floats(min_value=1e-9, max_value=1e5))
def test_times_survive_a_round_trip(value: float) -> None:
    assert parse_quantity(format_s(value), "s") == pytest.approx(value, rel=6e-3)


def test_formatting() -> None:
    assert format_hz(3.68e9) == "3.68 GHz"
    assert format_s(999.6e-6) == "1.00 ms"
    assert format_bytes(0) == "0 B"
    assert not math.isnan(float(format_flop(1.0).split()[0]))
