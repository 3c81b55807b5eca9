"""MFU and intensity on the page: the sentence on top, the parts of the time, the roof."""

from __future__ import annotations

from typing import Any

import pytest

from mansard.report.sections.blocks import Chart, Facts, Prose
from mansard.report.sections.use import headline_of_intensity, headline_of_mfu, section

PEAK = {"value": 1e15, "unit": "FLOP/s", "kind": "declared", "scope": "device", "dense": True, "dtype": "bf16", "clock_hz": None, "source": "a page"}  # fmt: skip
UNKNOWN = {"unknown": "model FLOP are not given", "needs": ["--flops"]}


def mfu(**told: Any) -> dict[str, Any]:
    """Return 6 TFLOP in 40 ms on a device of 1 PFLOP/s, whose kernels run for 30 ms: MFU 15 %, 20 % while they run."""
    return {
        "schema": "trace_mfu/1", "format": "kineto", "status": "complete", "damage": [], "findings": [], "definitions": {}, "region": "step",
        "wall_time_s": 0.04, "wall_time_is": "the range on the host", "gpu_kernel_union_s": 0.03, "flop": 6e12, "flop_source": "given",
        "mfu_ratio": 0.15, "hfu_ratio": UNKNOWN, "kernel_union_ratio": 0.2, "devices": 1, "peak": PEAK, "hardware": UNKNOWN,
        "start_s": 1e6, "missing_before_quoting": ["tokens", "layers"], **told,
    }  # fmt: skip


def test_an_mfu_says_what_it_is_of_and_where_the_rest_is_lost() -> None:
    assert headline_of_mfu(mfu()) == (
        "Region step uses about 15 % of the dense peak of 1 device (MFU), not yet to be quoted (2 facts missing); "
        "most of the rest: its kernels run at 20 % of the peak."
    )
    assert headline_of_mfu(mfu(missing_before_quoting=[])) == (
        "Region step uses 15 % of the dense peak of 1 device (MFU); most of the rest: its kernels run at 20 % of the peak."
    )
    # 2.4 ms of 40 ms at the peak, 2.6 ms more in kernels, 35 ms without one
    idle = mfu(mfu_ratio=0.06, kernel_union_ratio=0.48, gpu_kernel_union_s=0.005)
    assert headline_of_mfu(idle).endswith("no kernel of it runs in 88 % of its time.")
    unknown = headline_of_mfu(mfu(mfu_ratio=UNKNOWN, hfu_ratio=0.12, kernel_union_ratio=UNKNOWN))
    assert unknown == (
        "MFU of region step is not known: model FLOP are not given (needs --flops). With what was executed (HFU): 12 % of the dense peak."
    )
    impossible = headline_of_mfu(mfu(mfu_ratio={"implausible": 1.7, "suspects": ["too many FLOP"]}))
    assert "cannot be true: ! 170 %" in impossible


def test_time_without_an_assigned_kernel_is_an_upper_limit_and_not_idle() -> None:
    lost = mfu(
        findings=[
            {"code": "unlinked_kernels", "text": "4 of 10 kernels of the profile have no call that launched them"}
        ]
    )
    # 10 ms of 40 ms without a kernel that the range can claim; the 4 others may run in them
    assert headline_of_mfu(lost).endswith(
        "; none of its kernels runs in at most 25 % of its time, an upper limit since 4 of 10 kernels of the profile have no call that launched them."
    )
    found = section(lost, key="f", name="m.json")
    (chart,) = [b for b in found.blocks if isinstance(b, Chart)]
    assert chart.series[-1].name == "no kernel that can be assigned to it runs"
    lines = " ".join(line for b in found.blocks if isinstance(b, Prose) for line in b.lines)
    assert "in up to 25 % none of its kernels runs" in lines
    assert "upper limit" not in " ".join(
        line for b in section(mfu(), key="f", name="").blocks if isinstance(b, Prose) for line in b.lines
    )


def test_kernels_of_other_threads_are_no_idle_time_of_the_region() -> None:
    text = "other threads of the process launched 7 pieces of work (9.000 ms) during it; they are not in it (--all-threads counts them)"
    lost = mfu(findings=[{"code": "other_threads", "text": text}])
    assert "other threads of the process launched 7 pieces" in headline_of_mfu(lost)
    assert "of its time, an upper limit since other threads" in headline_of_mfu(lost)


def test_the_parts_of_the_time_add_up_to_it() -> None:
    found = section(mfu(), key="f", name="m.json")
    (chart,) = [b for b in found.blocks if isinstance(b, Chart)]
    # 15 % of 40 ms at the peak, 30 ms of kernels less that, 10 ms without one
    assert [s.y[0] for s in chart.series] == pytest.approx([0.006, 0.024, 0.010])
    lines = " ".join(line for b in found.blocks if isinstance(b, Prose) for line in b.lines)
    assert "Look first at the kernels themselves" in lines
    assert "Not to be quoted as an MFU yet: 2 things" in lines
    rows = dict(row for b in found.blocks if isinstance(b, Facts) for row in b.rows)
    assert rows["peak"] == "1.00 PFLOP/s"
    # A union that does not fit the ratios is not drawn.
    assert not [b for b in section(mfu(gpu_kernel_union_s=0.02), key="f", name="").blocks if isinstance(b, Chart)]


def intensity(**told: Any) -> dict[str, Any]:
    """Return 100 FLOP/byte at 100 TFLOP/s on 1 PFLOP/s and 2 TB/s: the ridge is at 500, the roof there 200 TFLOP/s."""
    return {
        "schema": "trace_intensity/1", "format": "kineto", "status": "complete", "damage": [], "findings": [], "device": 0, "scope": "window",
        "flop": 1e12, "bytes": 1e10, "flop_per_byte": 100.0, "ridge_flop_per_byte": 500.0, "bound": "memory", "limiting_ceiling": "HBM bandwidth",
        "achieved_flop_per_s": 1e14, "share_of_ceiling": 0.5, "reason": "0.5 of it", "coverage_ratio": 0.65, "peak": PEAK,
        "bandwidth": PEAK | {"value": 2e12, "unit": "B/s", "kind": "derived"}, **told,
    }  # fmt: skip


def test_an_intensity_says_the_bound_its_share_and_why() -> None:
    assert headline_of_intensity(intensity()) == (
        "Device 0: kernels with 65 % of its kernel time, taken together, are memory bound, at 50 % of its HBM bandwidth: "
        "100 FLOP/byte lies below the ridge point of 500. Single kernels may be bound otherwise."
    )
    assert headline_of_intensity(intensity(coverage_ratio=1.0)) == (
        "Device 0 is memory bound, at 50 % of its HBM bandwidth: 100 FLOP/byte lies below the ridge point of 500, its kernels taken together."
    )
    open_ = headline_of_intensity(intensity(bound="undetermined", reason="between 0.4 of both"))
    assert open_ == "The intensity is 100 FLOP/byte; what bounds it is undetermined: between 0.4 of both."
    assert headline_of_intensity(intensity(flop_per_byte=UNKNOWN)).startswith("Arithmetic intensity is not known")
    found = section(intensity(), key="f", name="i.json")
    (chart,) = [b for b in found.blocks if isinstance(b, Chart)]
    roof, point = chart.series
    assert roof.y[1] == pytest.approx(roof.x[1] * 2e12) == pytest.approx(1e15)  # both meet at the ridge
    assert (point.x, point.y, point.colour) == ([100.0], [1e14], "memory")
    assert "the roof there is 200 TFLOP/s" in point.text[0]
    assert roof.dash == "dot"  # one of the two is only declared
    lines = " ".join(line for b in found.blocks if isinstance(b, Prose) for line in b.lines)
    assert "kernels with 65 % of the kernel time" in lines
