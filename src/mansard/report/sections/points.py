"""Sections of measured points (`detailed.json`): measured over theory, rates over sizes, collectives with their fits."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core.ceilings import Ceilings
from mansard.measure.points.conclusions import Element
from mansard.report.sections.blocks import Section, number
from mansard.report.sections.points_sizes import achieved_over_sizes, bandwidth, collectives
from mansard.report.sections.points_theory import measured_over_theory


def sections(elements: Sequence[Element], ceilings: Ceilings | None, *, key: str, name: str) -> list[Section]:
    """Return the sections of the points of one run of `mansard measure`.

    Args:
        elements: Elements of `detailed.json`.
        ceilings: Ceilings given beside them, for the levels of memory and for links.
        key: Prefix of the identifiers in the page.
        name: Name of the file.
    """
    done = [e for e in elements if e["state"] == "done" and number(e["metrics"].get("median_s"))]
    sound = [e for e in done if e.get("verdict") != "implausible"]
    levels = ceilings.levels if ceilings is not None else ()
    out = [
        measured_over_theory(done, elements, ceilings, key, name),
        bandwidth(sound, levels, key, name),
        achieved_over_sizes(done, levels, key, name),
        collectives(sound, ceilings, key, name),
    ]
    return [s for s in out if s is not None]
