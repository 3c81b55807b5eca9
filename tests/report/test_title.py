"""The title of a page answers in one line, and the line below explains it without saying it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mansard.core import Bound, Unknown
from mansard.diagnose.records import Advice, AreaShare
from mansard.report.title import MOST, ROOM, of_headlines, of_run


def _areas(**seconds: float) -> tuple[AreaShare, ...]:
    return tuple(
        AreaShare(area=name, time_s=s, time_share=s, is_bound=s >= 0.1, share_of_ceiling=0.5, headroom_s=s / 2)
        for name, s in seconds.items()
    )


def _run(sample, bound: Bound, sentence: str, **of_verdict: object):
    verdict = replace(sample.verdict, bound=bound, sentence=sentence, time_share=0.4, areas=(), **of_verdict)
    return replace(sample, verdict=verdict)


def test_a_bound_with_a_ceiling_says_how_far_below_and_what_else_bounds(sample) -> None:
    run = _run(sample, Bound.MEMORY, "Memory-bound: 40 % of a step is limited by DRAM.", share_of_ceiling=0.5)
    assert of_run(run) == (
        "Memory-bound for 40 % of a step, at 50 % of the ceiling",
        "40 % of a step is limited by DRAM.",
    )
    both = replace(run, verdict=replace(run.verdict, areas=_areas(memory=0.4, compute=0.3, host=0.05)))
    assert (
        of_run(both)[0] == "Memory-bound for 40 % of a step, at 50 % of the ceiling"
    )  # 24 more characters have no room
    few = replace(both, verdict=replace(both.verdict, share_of_ceiling=Unknown("no ceiling")))
    assert of_run(few)[0] == "Memory-bound for 40 % of a step; also compute-bound for 30 %"
    whole = replace(run, step=replace(run.step, source="none"))
    assert of_run(whole)[0] == "Memory-bound for 40 % of the recording, at 50 % of the ceiling"


def test_waits_have_no_ceiling_and_an_unknown_share_is_not_stated(sample) -> None:
    host = _run(sample, Bound.HOST, "Host-bound: nothing runs.", share_of_ceiling=0.0, limiting_ceiling="input")
    assert of_run(host) == ("Host-bound for 40 % of a step", "Nothing runs.")
    unknown = _run(sample, Bound.NETWORK, "Network-bound: x.", share_of_ceiling=Unknown("no link"))
    assert of_run(unknown)[0] == "Network-bound for 40 % of a step"


def test_what_is_not_decided_names_what_is_and_its_need_once(sample) -> None:
    run = _run(
        sample,
        Bound.UNDETERMINED,
        "Undetermined: the limit of 40 % is not known. Supply counters.",
        needs=("counters",),
    )
    run = replace(
        run, verdict=replace(run.verdict, areas=_areas(memory=0.36, compute=0.17))
    )  # of two more, one has room
    assert of_run(run) == (
        "Undetermined for 40 % of a step; memory-bound for 36 %",
        "The limit of 40 % is not known.",
    )


def test_a_run_that_others_disturbed_says_so_first(sample) -> None:
    sentence = "Not a fair run: other programs used 90 % of the processors. Undetermined: steps differed."
    run = _run(sample, Bound.UNDETERMINED, sentence)
    again = Advice(rule="idle_machine", text="Record again.", gain_s=0.1, evidence="load")
    assert of_run(replace(run, advice=(again,))) == (
        "Not a fair run: undetermined for 40 % of a step",
        "Other programs used 90 % of the processors. Steps differed.",
    )


@pytest.mark.parametrize("end", ["; ", ". "])
def test_a_long_headline_is_parted_between_sentences(end: str) -> None:
    name, below = of_headlines([f"{'word ' * 15}end{end}then the rest, {'word ' * 20}"])
    assert name == f"{'word ' * 15}end"
    assert below[0].startswith("Then the rest, word")


def test_a_title_is_never_longer_than_it_may_be() -> None:
    for text in ("x" * 500, "word " * 100, f"a: {'x' * 300}", f"{'word ' * 20}; rest"):
        assert len(of_headlines([text])[0]) <= MOST
    assert len(of_headlines(["word " * 100])[0]) <= ROOM
