from __future__ import annotations

import dataclasses

import pytest

from mansard.core import is_known
from mansard.report.chart import roofline, used_ceilings
from mansard.report.text import clean, percent_shares, receipt_rows, shorten
from mansard.report.textplot import draw


def test_ridge_points_by_hand(sample) -> None:
    # 205e9 FLOP/s over 36.2e9 B/s = 5.663 FLOP/B; over 187e9 = 1.0963
    ridges = roofline(sample).ridges
    assert ridges["DRAM copy bandwidth"] == pytest.approx(5.663, abs=1e-3)
    assert ridges["L3 read bandwidth"] == pytest.approx(1.0963, abs=1e-4)


def test_every_operator_is_placed_or_named_as_unplaced(sample) -> None:
    chart = roofline(sample)
    assert sorted([p.index for p in chart.points] + list(chart.unplaced)) == list(range(len(sample.operators)))
    names = {sample.operators[i].name for i in chart.unplaced}
    assert names == {"my_ext::rotary_embed", "aten::select"}
    assert [line.ceiling for line in chart.lines] + list(chart.other) != []
    assert {c.resource.label for c in chart.other} == {"f32 special functions", "torch fixed cost"}
    assert len(chart.lines) + len(chart.other) == len(sample.ceilings)


def test_a_point_lies_below_its_ceiling_by_its_share(sample) -> None:
    chart = roofline(sample)
    lines = {line.ceiling.resource.label: line for line in chart.lines}
    checked = 0
    for point in chart.points:
        row = point.row
        line = lines.get(row.limiting_ceiling)
        if line is None or not is_known(row.share_of_ceiling) or row.calls > 30:
            continue
        height = line.flop_per_s(point.flop_per_byte)
        # The share also counts 1.3 us for every call, which the chart has no axis for.
        expected = row.share_of_ceiling - row.calls * 1.3e-6 / row.time_s
        assert point.flop_per_s / height == pytest.approx(expected, rel=1e-9), row.name
        checked += 1
    assert checked > 18


def test_axes_hold_ridges_and_points(sample) -> None:
    chart = roofline(sample)
    low, high = chart.x_range
    assert all(low < p.flop_per_byte < high for p in chart.points)
    assert len(chart.ridges) == 4
    assert all(low < x < high for x in chart.ridges.values())
    assert chart.y_range[1] > 429e9
    assert chart.lane is not None
    assert low < chart.lane < min(p.flop_per_byte for p in chart.points if not p.in_lane)


def test_only_ceilings_that_judged_something_are_used(sample) -> None:
    used = {line.ceiling.resource.label for line in roofline(sample).lines if line.used}
    assert used == {"f32 matrix", "DRAM copy bandwidth", "L3 read bandwidth"}
    bare = dataclasses.replace(sample, operators=())
    assert {line.ceiling.resource.label for line in roofline(bare).lines if line.used} == {"f32 matrix"}


def test_a_chart_without_ceilings_or_operators_is_drawn(sample) -> None:
    for changes in ({"ceilings": ()}, {"operators": ()}, {"ceilings": (), "operators": ()}):
        chart = roofline(dataclasses.replace(sample, **changes))
        assert chart.x_range[0] < chart.x_range[1]
        assert chart.y_range[0] < chart.y_range[1]
        assert all(len(line) <= 70 for line in draw(chart, width=70))


def test_text_roofline_puts_every_letter_on_the_plot(sample) -> None:
    lines = draw(roofline(sample), width=100)
    plot, legend = lines[:12], " ".join(lines[14:])
    for mark in "ABCDEFGH":
        assert f"{mark} " in legend
        assert any(mark in line[13:] for line in plot), mark


def test_percent_shares_round_to_exactly_one_hundred() -> None:
    # 1/7 = 14.2857 %: six are rounded down to 14.2, and 0.6 must be spread over the largest remainders.
    shares = percent_shares({str(i): 1 / 7 for i in range(7)})
    assert sum(round(v * 10) for v in shares.values()) == 1000
    assert sorted(shares.values()) == [14.2, 14.3, 14.3, 14.3, 14.3, 14.3, 14.3]
    # A sum that is wrong stays wrong.
    assert percent_shares({"a": 0.5, "b": 0.2}) == {"a": 50.0, "b": 20.0}


def test_clean_and_shorten() -> None:
    assert clean("a\x1b\u202eb\ud800") == "a\\x1b\\u202eb\\ud800"
    assert clean("\u5f20") == "\u5f20"
    assert "(30000 characters)" in clean("x" * 30_000)
    assert shorten("abcdefghij", 6, ellipsis="..") == "abc..j"
    assert len(shorten("x" * 500, 20)) == 20


def test_receipt_rows_give_numbers_their_unit() -> None:
    rows = receipt_rows(
        {"machine": {"memory_bytes": 8.3e9, "link_bytes_per_s": 2e9, "smt": True}, "assumed": ["a", "b"]}
    )
    assert rows == [
        ("machine.memory_bytes", "8.30 GB"),
        ("machine.link_bytes_per_s", "2.00 GB/s"),
        ("machine.smt", "yes"),
        ("assumed", "a; b"),
    ]
    assert len(receipt_rows({str(i): i for i in range(300)}, limit=50)) == 51


def test_small_outliers_do_not_flatten_the_chart(sample) -> None:
    chart = roofline(sample)
    hidden = [p for p in chart.points if not chart.y_range[0] <= p.flop_per_s <= chart.y_range[1]]
    spent = sum(p.row.time_s for p in chart.points)
    assert {p.row.name for p in hidden} <= {"aten::zero_", "aten::copy_"}
    assert sum(p.row.time_s for p in hidden) < 0.01 * spent
    # Many small operators are together no outlier: the whole lane stays on the chart.
    parts = tuple(
        dataclasses.replace(o, time_s=o.time_s / 400, flop=o.flop / 400, bytes=o.bytes / 400)
        for o in sample.operators
        if is_known(o.flop) and is_known(o.bytes) and o.time_s > 0.001
        for _ in range(400)
    )
    many = roofline(dataclasses.replace(sample, operators=parts))
    assert all(many.y_range[0] <= p.flop_per_s <= many.y_range[1] for p in many.points)


def test_one_main_line_of_each_sort(sample) -> None:
    """More figures for DRAM: the one that operators were judged against stands for the level, the others wait."""
    dram = next(c for c in sample.ceilings if c.resource.level == "dram")
    more = [
        dataclasses.replace(dram, resource=dataclasses.replace(dram.resource, mix="read"), value=41e9),
        dataclasses.replace(dram, resource=dataclasses.replace(dram.resource, mix="fresh"), value=1.5e9),
        dataclasses.replace(dram, value=30e9),
        dataclasses.replace(dram, scope="core", value=25e9),
    ]
    chart = roofline(dataclasses.replace(sample, ceilings=(*sample.ceilings, *more)))
    lines = [line for line in chart.lines if line.ceiling.resource.level == "dram"]
    assert len(lines) == 5
    assert [line.ceiling.value for line in lines if line.main] == [36.2e9]
    assert [line.ceiling.value for line in lines if line.used] == [36.2e9]
    assert [line.ceiling.value for line in lines if line.shown] == [36.2e9]
    # Nothing was judged against DRAM: then the best mix stands for it, never the one into new pages.
    idle = roofline(dataclasses.replace(sample, operators=(), ceilings=(*sample.ceilings, *more)))
    lines = [line for line in idle.lines if line.ceiling.resource.level == "dram"]
    assert [line.ceiling.value for line in lines if line.main] == [41e9]


def test_ceilings_that_only_share_a_name_are_not_used(sample) -> None:
    f32 = sample.ceilings[0]
    twin = dataclasses.replace(f32, value=99e9, scope="core")
    diagnosis = dataclasses.replace(sample, ceilings=(*sample.ceilings, twin))
    used = used_ceilings(diagnosis)
    assert len(sample.ceilings) not in used
    # 12 matrix and attention rows are limited by f32 matrix at 205 GFLOP/s
    assert used[0] == pytest.approx(sum(o.time_s for o in sample.operators if o.limiting_ceiling == "f32 matrix"))
