"""The title of a page in one line, which answers by itself, and the line below that explains it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mansard.core import Bound, is_known
from mansard.core.units import format_ratio
from mansard.diagnose.records import Diagnosis
from mansard.report.text import clean, shorten

#: Characters of a title: one line of a window of 1280 pixels, and what a title may have that is cut between two sentences.
ROOM, MOST = 76, 110
#: The rule that says that other programs are in every figure of a run.
AGAIN = "idle_machine"
_LEADS = re.compile(
    r"^(?:Not a fair run: )?(.*?)((?:Compute|Memory|Network|Host|Latency)-bound|Undetermined): ", re.DOTALL
)
#: With these a ceiling was reached in part; launches and waits have a cost and no ceiling.
_WITH_CEILING = (Bound.COMPUTE, Bound.MEMORY, Bound.NETWORK)


def of_run(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return what bounds a run, of how much of it and how far below, and the sentence that explains it.

    Args:
        diagnosis: The run.
    """
    v = diagnosis.verdict
    whole = "the recording" if diagnosis.step.source == "none" else "a step"
    name = "Undetermined" if v.bound is Bound.UNDETERMINED else f"{v.bound.value.capitalize()}-bound"
    title = f"{name} for {format_ratio(v.time_share)} of {whole}"
    if v.bound in _WITH_CEILING and is_known(v.share_of_ceiling) and v.limiting_ceiling:
        title += f", at {format_ratio(v.share_of_ceiling)} of the ceiling"
    others = [a for a in v.areas if a.is_bound and a.area != v.bound.value]
    also = "" if v.bound is Bound.UNDETERMINED else "also "
    for area in sorted(others, key=lambda a: -a.time_s)[:2]:
        more = f"; {also}{area.area}-bound for {format_ratio(area.time_share)}"
        title += more if len(title) + len(more) <= ROOM else ""
    if any(a.rule == AGAIN for a in diagnosis.advice[:1]):
        title = f"Not a fair run: {title[0].lower()}{title[1:]}"
    return title, _explained(v.sentence, v.needs)


def _explained(sentence: str, needs: Sequence[str]) -> str:
    """Return the sentence of a verdict without what the title says, and without the need that stands below.

    >>> _explained("Memory-bound: 70 % of a step is limited by DRAM.", ())
    '70 % of a step is limited by DRAM.'
    >>> _explained("Not a fair run: others ran. Undetermined: the limit is not known. Supply counters.", ("counters",))
    'Others ran. The limit is not known.'
    """
    found = _LEADS.match(sentence)
    if found:
        sentence = _capital(found[1]) + _capital(sentence[found.end() :])
    return sentence.removesuffix(f" Supply {needs[0]}.") if needs else sentence


def of_headlines(headlines: Sequence[str]) -> tuple[str, list[str]]:
    """Return the title of a page without a run, and the lines below it.

    Args:
        headlines: What each file comes to, a sentence or two each.

    >>> of_headlines(["2 of 2 points were measured: 2 normal."])
    ('2 of 2 points were measured: 2 normal.', [])
    >>> of_headlines(["First.", "Second."])
    ('2 results', ['First.', 'Second.'])
    >>> title, lines = of_headlines(["Best of 88,140 plans: tp2 cp8 pp32 dp2 on 1,024 devices, time of a step 58.8 s; 3 are within 2 %."])
    >>> title, lines
    ('Best of 88,140 plans: tp2 cp8 pp32 dp2 on 1,024 devices, time of a step 58.8 s', ['3 are within 2 %.'])
    """
    if len(headlines) != 1:
        return f"{len(headlines)} results", list(headlines)
    text = clean(headlines[0])
    if len(text) <= ROOM:
        return text, []
    for ends, most in ((("; ", ". "), ROOM), (("; ", ". "), MOST), ((", ",), ROOM), ((": ",), ROOM)):
        at = max(text.rfind(end, 15, most + 2) for end in ends)
        if at >= 0:
            return text[:at], [_capital(text[at + 2 :])]
    return shorten(text, ROOM), [text]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
