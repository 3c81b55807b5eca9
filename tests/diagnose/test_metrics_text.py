"""How metrics, fixed costs and money are printed: with units, definitions, and reasons where a number is not known."""

from __future__ import annotations

from pathlib import Path

from mansard.core import Implausible, Unknown
from mansard.diagnose.economics import Plan, cost_of, given_price, judge_change, measured_power, power_limit_of
from mansard.diagnose.fixed_cost import fit_fixed_cost, fixed_cost_of_rows
from mansard.diagnose.metrics import DEFINITIONS, metric
from mansard.hardware import load
from mansard.report.metrics_text import cost_lines, fixed_cost_lines, metric_lines


def test_every_number_has_its_definition_beside_it() -> None:
    lines = metric_lines(
        [
            metric("mfu_ratio", 0.4), metric("step_s", 1.232), metric("achieved_flop_per_s", 395.6e12),
            metric("concurrency_ratio", 1.125), metric("tokens_per_s", Unknown("the tokens are not known")),
            metric("hfu_ratio", Implausible(3.69, ("one device counted against the work of several",))),
        ],
        width=200,
    )  # fmt: skip
    assert lines[0].split()[:3] == ["mfu_ratio", "40", "%"]
    assert "model FLOP (recomputation left out) / (wall time x devices x dense peak)" in lines[0]
    assert "1.23 s" in lines[1]
    assert "396 TFLOP/s" in lines[2]
    assert lines[3].split()[1] == "1.12"
    assert "?" in lines[4]
    assert "not known: the tokens are not known" in lines[4]
    assert "! 3.69" in lines[5]
    assert "one device counted" in lines[5]
    narrow = metric_lines([metric("kernel_union_ratio", 0.45)], width=80)
    assert len(narrow) > 1
    assert max(map(len, narrow)) <= 80
    assert metric_lines([metric("tokens_per_s", Unknown("x"))], unknown=False) == []


def test_fixed_costs_are_printed_with_interval_and_size() -> None:
    gpu = fixed_cost_of_rows(
        [(17.42e-6, 4.006e-6), (16.1e-6, 4.006e-6)], backend="cublas", what="f32 products", rate=67e12
    )
    none = fit_fixed_cost({1.0: [1.0]}, backend="b", what="w")
    lines = fixed_cost_lines([gpu, none], width=120)
    # T0 13.41 and 12.09 us, the middle 12.75: (2 x 12.75e-6 x 67e12)^(1/3) = 1195
    assert lines[0] == (
        "  cublas, f32 products: T0 12.8 us (12.1 us to 13.4 us); 80 % of the rate from N = 1196 on; rows, 2 sizes"
    )
    assert lines[1].startswith("  fixed cost not known: a fixed cost needs 3 sizes")
    narrow = fixed_cost_lines([gpu, none], width=60)
    assert max(map(len, narrow)) <= 60
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(lines).split()), "nothing is lost"


def test_money_says_which_price_and_energy_which_power() -> None:
    plan = Plan(
        name="8", step_s=1.8, devices=8, tokens_per_step=1e5, product="h100-sxm", price=given_price(2.0, date="2026-11"),
        power=power_limit_of(load("h100-sxm")),
    )  # fmt: skip
    lines = cost_lines(cost_of(plan, steps=1000.0))
    assert lines[0] == "  0.008 USD per step (2 USD/h a device, given by the user, 2026-11, given)"
    assert lines[1] == "  0.08 USD per million tokens"
    assert lines[2] == "  8 USD for the run"
    assert lines[3].startswith("  at most 1.008e+04 J per step (700 W a device, thermal design power")  # 8 x 1.8 x 700
    unknown = cost_lines(cost_of(Plan(name="a", step_s=1.0, devices=1)))
    assert [line.split(":")[0].strip() for line in unknown] == ["money not known", "energy not known"]
    measured = Plan(name="16", step_s=1.2, devices=16, tokens_per_step=1e5, product="h100-sxm", price=plan.price,
                    power=measured_power(500.0, source="meter"))  # fmt: skip
    last = cost_lines(cost_of(measured), judge_change(plan, measured))
    assert "at most" not in "".join(last)
    # 1.5 times as fast on twice the devices: 75 %, for 1.33 times the money
    assert last[-1] == (
        "  16 does the work 1.5 times as fast as 8 on 2 times the devices (75 % of what the devices could bring), "
        "for 1.33 times the money: faster and dearer"
    )


def test_the_page_defines_every_metric_as_the_program_does() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    table = {
        r.split("|")[1].strip(" `"): r.split("|")[3].strip() for r in rows if r.split("|")[1].strip(" `") in DEFINITIONS
    }
    assert table == {name: definition for name, (_, definition) in DEFINITIONS.items()}
    assert list(table) == list(DEFINITIONS)
