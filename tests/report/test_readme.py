"""The Python of README.md runs as it is printed, against ceilings that are fixed."""

from __future__ import annotations

import re
from pathlib import Path

import mansard
from mansard.core import Area, Ceiling, Ceilings, Kind, Resource
from mansard.core.ceilings import MemoryLevel

README = Path(__file__).parents[2] / "README.md"


def _machine() -> Ceilings:
    dram = Resource(area=Area.MEMORY, level="dram", mix="triad")
    vector = Resource(area=Area.COMPUTE, dtype="f64", engine="vector")
    return Ceilings(
        ceilings=(
            Ceiling(resource=dram, value=60e9, unit="B/s", kind=Kind.MEASURED, scope="node"),
            Ceiling(resource=vector, value=100e9, unit="FLOP/s", kind=Kind.MEASURED, scope="node"),
        ),
        levels=(MemoryLevel(level="dram", capacity_bytes=24e9),),
        machine={},
    )


def test_a_kernel_without_a_framework_is_judged_as_readme_says(monkeypatch, capsys) -> None:
    text = README.read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "judge(" in block)
    monkeypatch.setattr(mansard, "measure", _machine)
    exec(compile(code, "README.md", "exec"), {})
    # 20e6 x 24 B / 60 GB/s = 8.0 ms of 12.5 ms; 40e6 FLOP / 100 GFLOP/s = 0.4 ms
    said = capsys.readouterr().out.strip()
    assert said == "memory - 0.64 of the DRAM triad bandwidth ceiling"
    assert said in code


def test_every_link_of_the_documents_leads_somewhere() -> None:
    root = README.parent
    for page in (README, *root.glob("docs/**/*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"
