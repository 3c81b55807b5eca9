"""What a user knows and no recording tells: padding, experts and offloading; and bytes that cross a link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mansard
from mansard.core import Unknown
from mansard.core.errors import MansardError
from mansard.diagnose.records import Advice

PIECE = 9_400_000  # one expert [B]
SIDE = 4096


def copies(path: Path, *, us: float = 42.7272727, pieces: int = 8, extra: list[dict[str, Any]] | None = None) -> str:
    """Four steps of pieces from the host one behind the other, which nothing hides."""
    events: list[dict[str, Any]] = list(extra or [])
    for n in range(4):
        t = 1000.0 + 1000 * n
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 7, "ts": t, "dur": 1000, "args": {}})  # fmt: skip
        for k in range(pieces):
            events.append({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 9, "ts": t + k * us, "dur": us,
                           "args": {"device": 0, "stream": 9, "correlation": 100 * n + k, "bytes": PIECE}})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "fused_moe_kernel", "pid": 0, "tid": 7, "ts": t + pieces * us, "dur": 200,
                       "args": {"device": 0, "stream": 7, "correlation": 100 * n + 99}})  # fmt: skip
    path.write_text(
        json.dumps(
            {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
                "traceEvents": events,
            }
        )
    )
    return str(path)


def advice(answer: Any, rule: str) -> Advice:
    return next(a for a in answer.diagnosis.advice if a.rule == rule)


def test_fetched_experts_are_found_by_the_size_of_one(tmp_path: Path) -> None:
    path = copies(tmp_path / "p.json")
    facts = {"offload": {"bytes_each": "9.4 MB", "ceiling_bytes_per_s": "418 GB/s", "declared_bytes_per_s": "450 GB/s"}}
    found = advice(mansard.diagnose(path, facts=facts), "expert_offload")
    # 9.4 MB in 42.727 us are 220 GB/s; the exposed 8 x 42.727 us = 341.8 us at 418 GB/s: 1 - 220/418 = 47.4 % of them.
    assert found.gain_s == pytest.approx(8 * 42.7272727e-6 * (1 - 220 / 418), rel=1e-3)
    # 418e9 x 42.727 us = 17.9 MB under way: two pieces.
    assert "Fetch 2 experts at once instead of 1" in found.text
    assert "8 pieces of 9.40 MB a step at 220 GB/s of 418 GB/s measured, 450 GB/s declared" in found.evidence
    with pytest.raises(MansardError, match="not enough"):  # a declared link is no measured one
        mansard.diagnose(path, facts={"offload": {"bytes_each": PIECE}})


def test_the_load_of_experts_speaks_on_the_fullest_rank(tmp_path: Path) -> None:
    path = copies(tmp_path / "p.json", pieces=1)
    given = tmp_path / "facts.json"
    given.write_text(json.dumps({"experts": {"tokens_by_rank": [9000, 3000, 2000, 2000], "rank": 0}}))
    # The mean of 16,000 tokens over four ranks is 4,000: of 200 us of experts 1 - 4/9 can be saved.
    assert advice(mansard.diagnose(path, facts=given), "expert_imbalance").gain_s == pytest.approx(200e-6 * 5 / 9)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"router": {}}, "no facts are called router"),
        ({"experts": {"tokens": 3}}, "experts has no tokens"),
        ({"experts": {"tokens_by_rank": [3]}}, "two or more"),
        ({"experts": {"tokens_by_rank": [3, 4]}}, "not enough"),
        ({"experts": {"tokens_by_rank": [3, 4], "rank": 2}}, "none of 2 ranks"),
        ({"offload": {"bytes_each": "9.4 Mb"}}, "Mb"),
        ({"workload": {"real_tokens": "many"}}, "expected a number"),
        ({"workload": {"phase": "dreaming"}}, "dreaming"),
        ({"workload": {"causal": 1}}, "true or false"),
        ({"clock": {"observed_hz": "1.2 GHz"}}, "not enough"),
    ],
)
def test_facts_that_say_nothing_are_refused(tmp_path: Path, facts: dict[str, Any], said: str) -> None:
    with pytest.raises(MansardError) as refused:
        mansard.diagnose(copies(tmp_path / "p.json"), facts=facts)
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_bytes_of_a_copy_are_those_over_its_link(tmp_path: Path) -> None:
    found = mansard.diagnose(copies(tmp_path / "p.json")).diagnosis
    row = next(o for o in found.operators if o.name == "copy host to device")
    assert row.link_bytes == {"pcie": 8.0 * PIECE}
    assert isinstance(row.bytes, Unknown)  # never a zero that is not true
    assert isinstance(found.bytes_per_step, Unknown)
    assert isinstance(found.flop_per_step, Unknown)


def test_an_unknown_link_asks_for_the_product(tmp_path: Path) -> None:
    path = Path(copies(tmp_path / "p.json"))
    path.write_text(path.read_text().replace("NVIDIA H100 80GB HBM3", "NVIDIA Z900"))
    found = mansard.diagnose(path).diagnosis
    row = next(o for o in found.operators if o.name == "copy host to device")
    assert row.link_bytes == {"host": 8.0 * PIECE}
    assert isinstance(row.share_of_ceiling, Unknown)
    assert any("--hardware" in n for n in row.share_of_ceiling.needs)
