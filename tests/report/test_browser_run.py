"""The page of one run in a real browser: its operators are sorted, searched, filtered and opened with mouse and keys."""

from __future__ import annotations

import dataclasses
import re

import pytest

from mansard.report.html import render


@pytest.fixture(scope="module")
def opened(keep_open, sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.html"
    path.write_text(render(sample), encoding="utf-8")
    return keep_open(path)


def first(opened) -> str:
    return opened.page.locator("#table tbody .open").first.text_content()


def rows(opened) -> int:
    return opened.page.locator("#table tbody tr.row").count()


def press(opened, key: str) -> None:
    """Sort by a column with the keyboard."""
    opened.page.locator(f'th[data-key="{key}"] button').focus()
    opened.page.keyboard.press("Enter")


def test_the_chart_has_every_operator_line_and_ridge(opened) -> None:
    found = opened.page.evaluate("""() => {
      const gd = document.getElementById('roofline'), of = meta => gd.data.filter(t => t.meta === meta);
      return { points: of('operators').reduce((n, t) => n + t.text.length, 0), lines: of('ceiling').length,
               ridges: of('ridges')[0].hovertext, notes: gd.layout.annotations.length,
               buttons: Array.from(document.querySelectorAll('.modebar-btn')).map(b => b.dataset.title).join('|') };
    }""")
    assert (found["points"], found["lines"]) == (24, 7)
    # 4 memory lines meet the 2 roofs of f32, in which operators work; f32 matrix over DRAM copy: 205e9 / 36.2e9 = 5.66 FLOP/byte
    assert len(found["ridges"]) == 4 * 2
    assert "ridge: DRAM copy meets f32 matrix at 5.7 FLOP/byte" in found["ridges"]
    assert found["notes"] >= 6 + 4
    assert "cloud" not in found["buttons"].lower()
    assert "Download plot" in found["buttons"]


def test_operators_sort_with_what_is_not_known_last(opened) -> None:
    assert (rows(opened), first(opened)) == (26, "aten::mm [ff1 backward]")  # by time
    press(opened, "name")
    assert first(opened) == "aten::_foreach_norm"
    assert opened.page.locator("th[aria-sort=ascending]").get_attribute("data-key") == "name"
    press(opened, "name")
    assert first(opened) == "Optimizer.step#AdamW.step"
    press(opened, "bytes")
    assert first(opened) == "Optimizer.step#AdamW.step"  # 473 MB
    press(opened, "share")
    assert first(opened) == "aten::_foreach_norm"  # 301 %
    press(opened, "share")
    assert first(opened) == "aten::copy_"  # 0.6 %
    assert opened.page.locator("#table tbody .open").last.text_content() == "my_ext::rotary_embed"
    press(opened, "time")


def test_operators_are_found_and_filtered(opened) -> None:
    opened.page.locator("#search").press_sequentially("GELU")
    assert rows(opened) == 2
    # gelu 12.9 ms + gelu_backward 14.7 ms of 709.35 ms = 3.9 %
    assert opened.page.locator("#count").text_content() == (
        "Showing 2 of 26 operators, 3.9 % of the time in operators"
    )  # fmt: skip
    opened.page.locator("#search").fill("")
    chip = opened.page.locator(".chip", has_text="compute")
    chip.focus()
    opened.page.keyboard.press("Space")
    assert (rows(opened), chip.get_attribute("aria-pressed")) == (14, "false")  # 26 less 12 that are compute bound
    opened.page.keyboard.press("Space")
    opened.page.select_option("#part", "optimizer")
    assert set(opened.page.locator("#table tbody tr.row td:nth-child(11)").all_text_contents()) == {"optimizer"}
    opened.page.select_option("#part", "")
    assert rows(opened) == 26


def test_a_row_opens_its_receipt_and_a_mark_opens_its_row(opened) -> None:
    button = opened.page.locator("#table tbody .open", has_text="_foreach_norm")
    button.focus()
    opened.page.keyboard.press("Enter")
    assert "not known" not in opened.page.locator("#table .more dl").text_content()
    assert button.get_attribute("aria-expanded") == "true"
    opened.page.keyboard.press("Enter")
    assert opened.page.locator("#table .more").count() == 0
    name = opened.hover_mark("").partition("time: ")[0]  # of marks over each other the browser says the upper one
    opened.page.mouse.down()
    opened.page.mouse.up()
    opened.page.locator("#table .more dl").wait_for()
    assert "205 GFLOP/s" in opened.page.locator("#table .more dl").text_content()
    assert opened.page.evaluate("document.activeElement.textContent") == name
    opened.page.keyboard.press("Enter")


def test_every_control_is_reached_by_tab_and_the_theme_is_kept(opened) -> None:
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    seen = []
    for _ in range(30):
        opened.page.keyboard.press("Tab")
        seen.append(opened.page.evaluate("document.activeElement.id || document.activeElement.className"))
    # the link over the navigation comes first; the table's search comes after the theme and the links to sections
    assert seen[0] == "skip"
    assert seen.index("theme") < seen.index("search")
    opened.page.click("#theme")
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    assert opened.page.locator("#theme").text_content() == "Theme: dark"
    opened.page.click("#theme")
    opened.page.click("#theme")
    assert opened.errors == []
    assert {u.partition(":")[0] for u in opened.requests} <= {"file", "data"}


@pytest.mark.parametrize("policy", [True, False])
def test_hostile_names_are_shown_and_never_run(open_page, hostile, tmp_path, policy) -> None:
    """With the policy, and without it: escaping has to hold alone."""
    text = render(hostile)
    path = tmp_path / "hostile.html"
    path.write_text(
        text if policy else re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text), encoding="utf-8"
    )
    found = open_page(path)
    assert "<img src=x" in found.hover_mark("&lt;img")
    found.page.evaluate("document.querySelectorAll('#table tbody .open').forEach(b => b.click())")
    assert found.page.evaluate("document.documentElement.dataset.pwned") is None
    links = '#roofline a[href^="javascript"], .hoverlayer a, td a, th a'
    assert (found.page.locator(links).count(), found.page.evaluate("document.images.length")) == (0, 0)
    body = found.page.evaluate("""() => {
      const copy = document.body.cloneNode(true);
      copy.querySelectorAll('script').forEach(s => s.remove());
      return copy.textContent;
    }""")
    for shown in ("<img src=x onerror=", "</script><script>", "\\u202egnp.exe", "\\x1b[31mred", "{{ 7 * 7 }}"):
        assert shown in body, shown
    assert "K" * 2000 not in body
    assert found.errors == []


def test_all_ceilings_can_be_shown(open_page, sample, tmp_path) -> None:
    dram = next(c for c in sample.ceilings if c.resource.level == "dram")
    more = tuple(dataclasses.replace(dram, value=dram.value * (0.4 + 0.05 * i)) for i in range(8))
    text = render(dataclasses.replace(sample, ceilings=(*sample.ceilings, *more)))
    assert "8 more (other access mixes" in text
    path = tmp_path / "ceilings.html"
    path.write_text(text, encoding="utf-8")
    found = open_page(path)
    seen = "document.getElementById('roofline').data.filter(t => t.meta === 'ceiling' && t.visible !== false).length"
    button = found.page.locator("#all-ceilings")
    assert (found.page.evaluate(seen), button.text_content()) == (6, "Show all 15 ceilings")
    button.press("Enter")
    assert (found.page.evaluate(seen), button.get_attribute("aria-pressed")) == (15, "true")
