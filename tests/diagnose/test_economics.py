"""Money and energy by hand, and plans judged by both time and cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core import Grade, Unknown, UsageError, is_known
from mansard.core.document import dumps
from mansard.diagnose.economics import (
    Plan,
    cost_of,
    given_price,
    judge_change,
    measured_power,
    power_limit_of,
    price_of,
)
from mansard.hardware import load


def test_a_step_by_hand() -> None:
    # 8 devices x 1.232 s = 9.856 device seconds; 2.5 USD/h: 9.856 / 3600 x 2.5 = 6.844 mUSD; 700 W: 6899 J
    plan = Plan(
        name="a", step_s=1.232, devices=8, tokens_per_step=32768.0, price=given_price(2.5, date="2026-11"), power=measured_power(700.0, source="meter"),
    )  # fmt: skip
    cost = cost_of(plan, steps=1e5)
    assert cost.usd_per_step == pytest.approx(6.8444e-3, rel=1e-4)
    assert cost.usd_per_token == pytest.approx(6.8444e-3 / 32768, rel=1e-4)
    assert cost.usd_per_run == pytest.approx(684.44, rel=1e-4)
    assert cost.joule_per_step == pytest.approx(6899.2)
    assert cost.joule_per_token == pytest.approx(0.21054, rel=1e-4)
    assert cost.device_hours_per_run == pytest.approx(9.856e5 / 3600)
    assert cost.energy_is_upper_bound is False
    assert '"date": "2026-11"' in dumps({"cost": cost})


def test_what_is_not_known_stays_unknown() -> None:
    cost = cost_of(Plan(name="a", step_s=1.0, devices=1, price=given_price(3.6)))
    assert cost.usd_per_step == pytest.approx(1e-3)
    assert isinstance(cost.usd_per_token, Unknown)
    assert isinstance(cost.usd_per_run, Unknown)
    assert isinstance(cost.joule_per_step, Unknown)
    assert isinstance(cost_of(Plan(name="a", step_s=1.0, devices=1)).usd_per_step, Unknown)


def test_prices_and_limits_of_the_catalogue() -> None:
    h100, a10g = load("h100-sxm"), load("a10g")
    missing = price_of(h100)
    assert isinstance(missing, Unknown)  # sources disagree on what it costs, so it is the user's to say
    assert missing.needs == ("--usd-per-hour",)
    (offer,) = a10g.prices
    older = replace(offer, usd_per_hour=2.0, offer="older", receipt=replace(offer.receipt, date="2020"))
    both = replace(a10g, prices=(older, offer))
    latest = price_of(both)
    assert not isinstance(latest, Unknown)
    assert (latest.usd_per_hour, latest.certainty) == (1.006, "reported")  # the later of the two
    earlier = price_of(both, offer="older")
    assert not isinstance(earlier, Unknown)
    assert earlier.usd_per_hour == 2.0
    with pytest.raises(UsageError, match="no offer"):
        price_of(both, offer="nobody")
    limit = power_limit_of(h100)
    assert not isinstance(limit, Unknown)
    assert (limit.watt, limit.upper_bound, limit.grade) == (700.0, True, Grade.DECLARED)
    bounded = cost_of(Plan(name="a", step_s=1.0, devices=2, power=limit))
    assert bounded.joule_per_step == pytest.approx(1400.0)
    assert bounded.energy_is_upper_bound is True
    assert isinstance(price_of(load("zen5")), Unknown)  # a family of cores has no price


def test_a_package_of_two_devices_shares_its_power() -> None:
    # an MI250X has two devices and 560 W (or what its file says)
    sku = load("mi250x")
    limit = power_limit_of(sku)
    assert sku.package.devices == 2
    assert not isinstance(limit, Unknown)
    assert limit.watt == pytest.approx(sku.tdp_w / 2)


def plan(name, step_s, devices, **more) -> Plan:
    return Plan(name=name, step_s=step_s, devices=devices, product="h200", **more)


@pytest.mark.parametrize(
    ("after", "speedup", "cost", "verdict"),
    [
        # (step [s], devices): from 1 s on 8
        ((0.5, 16), 2.0, 1.0, "faster and the same cost"),
        ((0.6, 16), 1.6667, 1.2, "faster and dearer"),
        ((0.788, 8), 1.2690, 0.788, "faster and cheaper"),
        ((1.5, 4), 0.6667, 0.75, "slower and cheaper"),
        ((1.2, 8), 0.8333, 1.2, "slower and dearer"),
        ((1.0, 16), 1.0, 2.0, "as fast and dearer"),
    ],
)
def test_faster_is_judged_by_cost_too(after, speedup, cost, verdict) -> None:
    found = judge_change(plan("8", 1.0, 8), plan("n", *after))
    assert found.speedup_ratio == pytest.approx(speedup, rel=1e-3)
    assert found.cost_ratio == pytest.approx(cost, rel=1e-3)
    assert found.efficiency_ratio == pytest.approx(speedup * 8 / after[1], rel=1e-3)
    assert found.break_even_speedup == pytest.approx(after[1] / 8)
    assert found.verdict == verdict


def test_what_an_hour_of_waiting_costs() -> None:
    # 1 s on 8 at 3.6 USD/h: 8 mUSD; 0.6 s on 16: 9.6 mUSD. 1.6 mUSD for 0.4 s are 14.4 USD for an hour.
    price = given_price(3.6)
    found = judge_change(plan("8", 1.0, 8, price=price), plan("16", 0.6, 16, price=price))
    assert found.usd_per_hour_saved == pytest.approx(14.4)
    cheaper = judge_change(plan("8", 1.0, 8, price=price), plan("8b", 0.6, 8, price=price))
    assert isinstance(cheaper.usd_per_hour_saved, Unknown)


def test_the_same_work_or_no_comparison() -> None:
    # twice the tokens in 1.5 times the time: 1.33 times as fast, for three quarters of the money
    found = judge_change(plan("a", 1.0, 8, tokens_per_step=1e4), plan("b", 1.5, 8, tokens_per_step=2e4))
    assert (found.speedup_ratio, found.cost_ratio) == pytest.approx((4 / 3, 0.75))
    with pytest.raises(UsageError, match="tokens"):
        judge_change(plan("a", 1.0, 8, tokens_per_step=1e4), plan("b", 1.0, 8))


def test_other_products_need_prices() -> None:
    other = Plan(name="b", step_s=0.5, devices=8, product="b200")
    unknown = judge_change(plan("a", 1.0, 8), other)
    assert isinstance(unknown.cost_ratio, Unknown)
    assert unknown.verdict == "faster, cost unknown"
    unnamed = judge_change(Plan(name="a", step_s=1.0, devices=8), Plan(name="b", step_s=0.5, devices=8))
    assert isinstance(unnamed.cost_ratio, Unknown)  # two products without a name may be two products
    priced = judge_change(
        plan("a", 1.0, 8, price=given_price(2.0)),
        Plan(name="b", step_s=0.5, devices=8, product="b200", price=given_price(5.0)),
    )
    assert priced.cost_ratio == pytest.approx(1.25)  # half the time at two and a half times the price


positive = st.floats(1e-3, 1e3)


@given(a=positive, b=positive, n=st.integers(1, 512), m=st.integers(1, 512), price=positive, other=positive)
def test_cost_is_devices_times_time_times_price(a, b, n, m, price, other) -> None:
    before, after = (
        plan("a", a, n, price=given_price(price), tokens_per_step=100.0),
        plan("b", b, m, price=given_price(other), tokens_per_step=250.0),
    )
    found = judge_change(before, after)
    assert is_known(found.cost_ratio)
    assert found.cost_ratio == pytest.approx(cost_of(after).usd_per_token / cost_of(before).usd_per_token)
    assert found.cost_ratio * found.speedup_ratio == pytest.approx(found.break_even_speedup)
    # a speed-up above the break-even is the same as a cost ratio below one
    assert abs(found.cost_ratio - 1.0) < 1e-9 or (found.speedup_ratio > found.break_even_speedup) == (
        found.cost_ratio < 1.0
    )


@pytest.mark.parametrize("bad", [{"step_s": 0.0}, {"devices": 0}, {"tokens_per_step": 0.0}, {"step_s": float("inf")}])
def test_plans_that_cannot_be(bad) -> None:
    with pytest.raises(UsageError):
        Plan(**{"name": "a", "step_s": 1.0, "devices": 1} | bad)
