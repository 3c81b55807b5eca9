"""The page on configuration names every key, and its reference is the one that the benchmarks make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mansard.measure.config import load_plan
from mansard.measure.config.common import COMMON
from mansard.measure.config.declared import KEYS as HARDWARE_KEYS
from mansard.measure.config.plan import ORDER, TOP_KEYS
from mansard.measure.config.presets import PRESETS
from mansard.measure.config.published import V1_KEYS
from mansard.measure.config.reference import BEGIN, END, parameter_reference
from mansard.measure.config.sweeps import RANGE_KEYS
from mansard.measure.config.written import V2_KEYS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
TESTS = Path(__file__).resolve().parent


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_key_is_on_the_page(page: str) -> None:
    keys = [*TOP_KEYS, *V2_KEYS, *V1_KEYS, *HARDWARE_KEYS, *PRESETS, *(p.name for p in COMMON)]
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [key for key in RANGE_KEYS if key not in page] == []
    order = page.split("the later one wins: ")[1].split(".\n")[0]
    assert order.replace("`", "") == ORDER


def test_the_reference_is_what_the_benchmarks_say(page: str) -> None:
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}\n\n{parameter_reference()}\n{END}{after}"
    if os.environ.get("MANSARD_WRITE_DOCS"):
        PAGE.write_text(wanted, encoding="utf-8")
        return
    assert page == wanted, "MANSARD_WRITE_DOCS=1 pytest tests/measure/test_config_docs.py writes it anew"


def test_the_example_on_the_page_is_planned(page: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    plan = load_plan(path)
    # m 512, 1024, 2048, 4096, 8192; n two; two implementations: 20. Sizes 2^20, 2^22, ..., 2^28: 5.
    assert plan.size == 25
    assert len(plan.ceilings) == 2


def test_tests_named_as_proof_exist(page: str) -> None:
    import re

    named = set(re.findall(r"`(test_\w+)`", page))
    there = "".join(path.read_text(encoding="utf-8") for path in TESTS.glob("test_*.py"))
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in there] == []
