from __future__ import annotations

import dataclasses
import html
import json
import re
from html.parser import HTMLParser

import pytest

from mansard.core.units import format_s
from mansard.core.unknown import Unknown
from mansard.diagnose.records import Note
from mansard.report.html import render
from mansard.report.payload import ROW_CAP, as_json, payload

URL_ATTRIBUTES = {"src", "href", "srcset", "action", "data", "poster", "background", "formaction", "xlink:href"}


class Page(HTMLParser):
    """Tags, what their URL attributes say, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.bodies: list[tuple[dict, str]] = []
        self.open: dict | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.urls += [(tag, v or "") for k, v in attrs if k in URL_ATTRIBUTES]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]
        self.open = dict(attrs) | {"tag": tag} if tag in ("script", "style") else None

    def handle_data(self, data) -> None:
        if self.open is not None:
            self.bodies.append((self.open, data))

    def handle_endtag(self, tag) -> None:
        self.open = None


def data_of(page: str) -> dict:
    """Return the page's payload with its rows spelled out."""
    body = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page, re.DOTALL)
    assert body is not None
    return decoded(json.loads(body.group(1)))


def decoded(data: dict) -> dict:
    fields, texts = data["fields"], data["texts"]
    words, figures = len(fields["texts"]), len(fields["figures"])
    data["operators"] = [
        {key: texts[n] for key, n in zip(fields["texts"], row[:words], strict=True)}
        | {"v": dict(zip(fields["figures"], row[words : words + figures], strict=True))}
        | {"t": {key: texts[n] for key, n in zip(fields["shown"], row[words + figures :], strict=True)}}
        for row in data["rows"]
    ]
    data["points"] = [dict(zip(fields["point"], point, strict=True)) for point in data["chart"]["points"]]
    return data


@pytest.fixture(scope="module")
def page(sample) -> str:
    return render(sample)


@pytest.fixture(scope="module")
def hostile_page(hostile) -> str:
    return render(hostile)


def test_nothing_is_loaded_from_anywhere(page, hostile_page) -> None:
    for text in (page, hostile_page):
        seen = Page(text)
        assert {url for _, url in seen.urls if not url.startswith("#")} == {"data:,"}
        assert not seen.handlers
        assert not {"iframe", "img", "object", "embed", "base", "form", "video", "audio"} & set(seen.tags)
        assert "@import" not in next(b for a, b in seen.bodies if a["tag"] == "style")
        assert "default-src &#39;none&#39;" in text
        own = [b for a, b in seen.bodies if a["tag"] == "style" or "plotly.js" not in b[:100]]
        assert not re.search(
            r"https?://|//[a-z]+\.[a-z]+/", "".join(b for b in own if "payload" not in b and len(b) < 60_000)
        )


def test_every_script_is_one_of_ours(page, hostile_page) -> None:
    for text in (page, hostile_page):
        scripts = [b for a, b in Page(text).bodies if a["tag"] == "script"]
        assert Page(text).tags.count("script") == 8
        assert len(scripts) == 8
    ours = [b for a, b in Page(page).bodies if a["tag"] == "script" and "type" not in a]
    theirs = [b for a, b in Page(hostile_page).bodies if a["tag"] == "script" and "type" not in a]
    assert ours == theirs


def test_page_is_under_two_megabytes(page, sample) -> None:
    assert len(page.encode()) < 1_400_000
    rows = tuple(
        dataclasses.replace(sample.operators[0], name=f"{i}" + "\u5f20" * 10_000, shapes=f"{i}" + "<" * 10_000)
        for i in range(3000)
    )
    text = render(
        dataclasses.replace(sample, operators=rows, advice=sample.advice * 500, findings=sample.findings * 500)
    )
    assert len(text.encode()) < 2_000_000
    data = data_of(text)
    kept = len(data["operators"])
    assert 100 < kept < ROW_CAP
    assert data["total_count"] == 3000
    assert data["sums"][0]["name"] == f"{3000 - kept} others"
    assert f"lists the {kept} longest" in data["cap"]
    assert "1900 more are in the JSON document" in text  # 4 x 500 pieces of advice, 100 shown


def test_the_worst_texts_still_fit(sample) -> None:
    """Everything at its longest and made of characters whose escapes are five times as long."""
    bad = "&" * 5_000
    rows = tuple(
        dataclasses.replace(
            sample.operators[0], name=f"{i}{bad}", shapes=f"{i}{bad}", reason=f"{i}{bad}", source=f"{i}{bad}"
        )
        for i in range(1500)
    )
    worst = dataclasses.replace(
        sample, operators=rows, program=bad, receipt={f"{i}{bad}": bad for i in range(500)},
        advice=tuple(dataclasses.replace(sample.advice[0], rule=bad, text=bad, evidence=bad) for _ in range(200)),
        findings=tuple(dataclasses.replace(sample.findings[0], code=bad, text=bad) for _ in range(200)),
        ceilings=tuple(dataclasses.replace(c, source=bad, conditions={bad: bad}) for c in sample.ceilings) * 20,
        verdict=dataclasses.replace(sample.verdict, evidence=(bad,) * 200, counter_evidence=(bad,) * 200, sentence=bad),
    )  # fmt: skip
    assert len(render(worst).encode()) < 2_000_000


def test_the_cap_holds_nothing_back_silently(sample) -> None:
    small = dataclasses.replace(sample.operators[0], name="a", time_s=0.001, flop=1e6, bytes=1e3, headroom_s=0.0005,
                                shapes="", formula="", reason="", source="")  # fmt: skip
    step = dataclasses.replace(sample.step, median_s=2.5)
    data = decoded(payload(dataclasses.replace(sample, operators=(small,) * (ROW_CAP + 100), step=step)))
    kept = len(data["operators"])
    others, everything = data["sums"]
    assert kept == ROW_CAP
    assert others["name"] == "100 others"
    assert others["t"]["time"] == "100 ms"
    # 2100 operators of 1 ms, 1 MFLOP and 1 kB in a step of 2.5 s: 2.1 s, 84.0 %, 2.10 GFLOP, 2.10 MB, 1.05 s
    assert everything["t"] == {"calls": str(2100 * 12), "time": "2.10 s", "step": "84.0 %", "flop": "2.10 G",
                               "bytes": "2.10 MB", "headroom": "1.05 s"}  # fmt: skip


def test_every_operator_and_ceiling_is_in_the_payload(page, sample) -> None:
    data = data_of(page)
    assert [o["name"] for o in data["operators"]] == [o.name for o in sample.operators]
    placed = {p["i"] for p in data["points"]}
    assert len(placed) == 24  # 26 less the one of unknown cost and the one that moves nothing
    assert "my_ext::rotary_embed, aten::select" in page
    assert {line["label"] for line in data["chart"]["lines"]} == {
        "f32 matrix", "bf16 matrix", "f32 vector", "L1 read bandwidth", "L2 read bandwidth", "L3 read bandwidth",
        "DRAM copy bandwidth",
    }  # fmt: skip
    assert "torch fixed cost 1.30 us" in page
    assert "f32 special functions 1.90 G evaluations/s" in page
    first = data["operators"][0]
    assert first["t"]["time"] == "105 ms"
    assert first["t"]["flop"] == "14.5 G"
    assert first["t"]["share"] == "67 %"
    assert first["ceiling"] == "f32 matrix 205 GFLOP/s"


def test_shares_and_story_are_on_the_page(page) -> None:
    shown = re.findall(r"<b>(\d+\.\d)\u00a0%</b>", page)
    assert len(shown) == 6
    assert sum(round(float(s) * 10) for s in shown) == 1000
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for words in ("Compute-bound for 79\u00a0% of a step, at 70\u00a0% of the ceiling", "782 ms", "median of 17 steps", "312 ms", "Against it", "foreign_load",
                  "MAC = 2 FLOP", "machine" if "machine" in page else "environment.cpu", "FLOP/byte: DRAM 5.66, L3 1.1"):  # fmt: skip
        assert words in text, words


def test_json_cannot_leave_its_tag() -> None:
    text = as_json({"</script>": "<!--<script>&\u2028"})
    assert "<" not in text
    assert ">" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"</script>": "<!--<script>&\u2028"}


def test_missing_figures_are_explained(sample) -> None:
    from mansard.core import SUSPECTS, Implausible, Unknown

    text = render(
        dataclasses.replace(
            sample,
            mfu_ratio=Implausible(1.7, SUSPECTS),
            bytes_per_step=Unknown("no bytes were recorded", ("--bytes",)),
        )
    )
    assert "170 %!" in text
    assert "170 % cannot be true; suspects: work that was optimised away" in text
    assert 'not known: no bytes were recorded; needs <span class="flag">--bytes</span>' in text


def test_the_first_screen_says_what_to_try_first_and_what_words_mean(sample) -> None:
    text = render(sample)
    head = text[: text.index('<nav class="contents"')]
    best = sample.advice[0]
    assert "<b>Try first</b>" in head
    # the share of the step: gain over its median
    assert f"saves at most {format_s(best.gain_s)} of {format_s(sample.step.median_s)} per step" in head
    for word in ("measured", "derived", "declared", "modelled", "assumed", "share of ceiling", "MFU", "headroom"):
        assert f"<dt>{word}</dt>" in head, word
    assert '<abbr title="' in head
    quiet = render(dataclasses.replace(sample, advice=()))
    assert "<b>Try first</b>" not in quiet


def test_work_of_which_a_part_is_not_known_is_a_lower_limit(sample) -> None:
    text = render(dataclasses.replace(sample, attributed_ratio=0.5, bytes_per_step=0.0, flop_per_step=2e12))
    assert "\u22652.00 TFLOP" in text
    assert "<dd>0 B</dd>" not in text  # nothing counted is not nothing moved
    assert "of the 50 % whose cost is known" in text


def test_a_sum_of_which_nothing_is_known_is_no_zero(sample) -> None:
    rows = tuple(dataclasses.replace(o, flop=Unknown("x"), bytes=Unknown("x")) for o in sample.operators)
    sums = payload(dataclasses.replace(sample, operators=rows))["sums"][0]["t"]
    assert (sums["flop"], sums["bytes"]) == ("?", "?")
    some = (dataclasses.replace(rows[0], bytes=2e9), *rows[1:])
    assert payload(dataclasses.replace(sample, operators=some))["sums"][0]["t"]["bytes"] == "\u2265 2.00 GB"


def test_one_step_has_no_spread(sample) -> None:
    one = dataclasses.replace(sample.step, count=1, ci95_s=(sample.step.median_s,) * 2)
    text = render(dataclasses.replace(sample, step=one))
    assert "one step: its spread is not known" in text
    assert "95 % in" not in text[: text.index("<nav")]


def test_empty_diagnosis_has_a_page(sample) -> None:
    empty = dataclasses.replace(sample, operators=(), ceilings=(), advice=(), findings=(), receipt={}, parts=())
    text = render(empty)
    assert "No rule found anything worth doing." in text
    assert "No receipt was kept" in text
    assert data_of(text)["operators"] == []


def test_the_first_screen_says_how_sure_it_is(sample) -> None:
    head = render(sample).partition('<nav class="contents"')[0]
    grade = sample.verdict.grade.value
    assert f"<b>How sure</b>: {grade}: " in head
    busy = Note(code="foreign_load", text="other programs used 80 % of the processors")
    quiet = Note(code="rest_of_wall", text="said further down")
    doubted = render(dataclasses.replace(sample, findings=(quiet, busy))).partition('<nav class="contents"')[0]
    assert "Other programs used 80 % of the processors." in doubted
    assert "said further down" not in doubted
    one = render(dataclasses.replace(sample, step=dataclasses.replace(sample.step, count=1)))
    assert "One step was recorded, so its spread is not known" in one
