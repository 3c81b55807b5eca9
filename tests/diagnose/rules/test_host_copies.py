"""What is said of copies between host and device: bytes, rate, share of the link, and which of the two is slow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import Ran, device_case, gemm, host_copy

from mansard.core import Demand
from mansard.diagnose.facts import Facts, TransferFacts
from mansard.diagnose.host_copies import copy_evidence
from mansard.diagnose.links import UNKNOWN_HOST

WORK = gemm(4096, 4096, 4096)
COPY = host_copy(50e6)  # 1 ms at the 50 GB/s of the link


@pytest.mark.parametrize(
    ("length_ms", "told", "expected"),
    [
        # 50 MB in 1.1 ms are 45.45 GB/s, 1 / 1.1 of the link.
        (1.1, TransferFacts(pinned=True), ("at 45.5 GB/s; 91 % of the pcie link (50.0 GB/s", "the link is full")),
        # 50 MB in 4 ms are 12.5 GB/s, a quarter of it.
        (4.0, TransferFacts(pinned=False), ("at 12.5 GB/s; 25 % of", "slow: pageable memory")),
        (4.0, TransferFacts(pinned=True, latency_s=4e-3), ("at 12.5 GB/s; 25 % of", "slow: small pieces")),
        (4.0, TransferFacts(pinned=True), ("at 12.5 GB/s; 25 % of", "pinned and not small")),
        (4.0, TransferFacts(), ("at 12.5 GB/s; 25 % of", "the link is not full")),
    ],
)
def test_whether_the_copies_or_the_link_are_slow(
    length_ms: float, told: TransferFacts, expected: tuple[str, ...]
) -> None:
    said = copy_evidence(device_case([Ran(WORK, 2.0), Ran(COPY, length_ms)], Facts(transfers={1: told})))
    assert said[0].startswith("host to device: 50.0 MB a step")
    for text in expected:
        assert text in said[0]


def test_without_a_link_the_rate_is_shown_and_the_share_is_not_known() -> None:
    copy = replace(COPY, demand=Demand(link_bytes={UNKNOWN_HOST: 50e6}))
    case = device_case([Ran(WORK, 2.0), Ran(copy, 4.0)])
    said = copy_evidence(case)
    assert said[0].startswith("host to device: 50.0 MB a step at 12.5 GB/s; its share of the link is not known")
    assert "not recorded" in said[1]
