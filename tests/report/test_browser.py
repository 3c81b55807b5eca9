"""The page of a mix of results in a real browser: network, console, hover, sort, filter, theme, print, keyboard, axe, looks."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from mansard.core.document import dumps
from mansard.report.document import to_document
from mansard.report.html import render_page
from mansard.report.material import read

ASSETS = Path(__file__).with_name("assets")

GRID = """async ([url, columns, rows]) => {
  const image = new Image(); image.src = url; await image.decode();
  const canvas = document.createElement('canvas'); canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext('2d'); context.imageSmoothingQuality = 'high'; context.drawImage(image, 0, 0, columns, rows);
  const data = context.getImageData(0, 0, columns, rows).data, out = [];
  for (let i = 0; i < data.length; i += 4) { out.push((0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2]) / 255); }
  return out;
}"""


def _mixed():
    spec = importlib.util.spec_from_file_location("report_mixed_b", Path(__file__).with_name("mixed.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def page_file(sample, folder):
    made = _mixed()
    files = {
        "run.json": dumps(to_document(sample)),
        "detailed.json": json.dumps(made.sweep_of_memory() + made.sweep_of_gemm() + made.all_reduces()),
        "ceilings.json": json.dumps(made.ceilings()),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    made.trace(folder / "trace.json")
    path = folder / "page.html"
    path.write_text(render_page(read([folder / n for n in (*files, "trace.json")])), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(keep_open, page_file):
    return keep_open(page_file)


def test_nothing_is_requested_and_nothing_fails(opened, page_file) -> None:
    for key in ("shares", "f3-time", "f3-devices", "f1-bandwidth", "f1-sizes", "f1-transfers", "f2-roofline-node"):
        opened.plot(key)
    assert {u for u in opened.requests if not u.startswith("data:")} == {page_file.as_uri()}
    assert opened.errors == []


def test_hover_says_what_a_piece_of_time_is(opened) -> None:
    host = opened.plot("f3-time")
    text = host.evaluate("""(gd) => {
      const c = gd.data.findIndex(t => t.name === 'exposed');
      Plotly.Fx.hover(gd, [{ curveNumber: c, pointNumber: 0 }]);
      return gd.querySelector('.hoverlayer').textContent;
    }""")
    assert "150 us from 400 us" in text
    assert host.evaluate("gd => gd.layout.shapes.length") == 1  # the exposed stretch, shaded over its device


def test_hover_on_the_roofline_is_the_receipt(opened) -> None:
    text = opened.hover_mark("")
    for word in ("ceiling: f32 matrix 205 GFLOP/s", "share of ceiling", "2mnk FLOP"):
        assert word in text, word


def test_the_roofline_shows_one_dtype_alone(opened) -> None:
    seen = (
        "() => document.getElementById('roofline').data.filter(t => t.meta === 'ceiling' && t.visible).map(t => t.name)"
    )
    before = opened.page.evaluate(seen)
    opened.page.select_option("#dtype", "bf16")
    opened.page.wait_for_function(
        "() => document.getElementById('roofline').data.some(t => t.meta === 'ceiling' && !t.visible)"
    )
    assert set(before) - set(opened.page.evaluate(seen)) == {"f32 matrix", "f32 vector"}
    opened.page.select_option("#dtype", "")


def first_cells(opened, key, count=1):
    return opened.page.locator(f"#s-{key} table tbody tr th").all_inner_texts()[:count]


def test_tables_sort_search_and_filter_by_keyboard_too(opened) -> None:
    box = opened.page.locator("#s-f1-theory")
    assert box.locator("tbody tr").count() == 9  # 2 sizes of memory, 4 of gemm, 3 all-reduces
    button = box.locator("th button", has_text="median")
    button.focus()
    opened.page.keyboard.press("Enter")
    assert box.locator("th[aria-sort=descending]").inner_text().startswith("median")
    assert "size=512" in first_cells(opened, "f1-theory")[0]  # 2 x 512^3 / 100 GFLOP/s = 2.68 ms is the longest
    opened.page.keyboard.press("Enter")
    assert "16000" in first_cells(opened, "f1-theory")[0]  # 16 kB at 1 TB/s
    box.locator("input[type=search]").fill("GEMM")
    assert box.locator("tbody tr").count() == 4
    assert box.locator(".count").inner_text() == "4 of 9 rows"
    box.locator("input[type=search]").fill("")
    box.locator("select").select_option("low")
    assert box.locator("tbody tr").count() == 2
    box.locator("select").select_option("")


def test_the_theme_changes_every_drawn_chart(opened) -> None:
    host = opened.plot("f1-bandwidth")
    colour = "gd => gd.layout.font.color"
    light = host.evaluate(colour)
    opened.page.click("#theme")  # auto, then dark
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = host.evaluate(colour)
    assert (light, dark) == ("#16181d", "#eceef1")
    opened.page.click("#theme")
    opened.page.click("#theme")
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_folded_runs_open(opened) -> None:
    opened.page.locator("#s-run2 summary").click()
    rows = opened.page.locator("#s-run2 table tbody tr")
    rows.first.wait_for(state="attached")  # the table is drawn after the fold has opened
    assert rows.count() >= 1
    opened.page.locator("#s-run2 summary").click()


def test_print_draws_every_chart(open_page, page_file) -> None:
    found = open_page(page_file)
    undrawn = "Array.from(document.querySelectorAll('section .plot')).filter(p => !p.querySelector('.main-svg')).length"
    assert found.page.evaluate(undrawn) > 0  # they wait for the reader to come near
    pdf = found.page.pdf(format="A4")
    assert pdf[:5] == b"%PDF-"
    assert found.page.evaluate(undrawn) == 0
    assert found.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert found.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, page_file, scheme) -> None:
    found = open_page(page_file, scheme=scheme)
    found.page.evaluate(ASSETS.joinpath("axe.min.js").read_text(encoding="utf-8"))
    result = found.page.evaluate("axe.run({ resultTypes: ['violations'] })")
    told = [(v["id"], v["nodes"][0]["html"][:120], len(v["nodes"])) for v in result["violations"]]
    assert told == []


def test_a_phone_scrolls_in_one_direction(open_page, page_file) -> None:
    found = open_page(page_file, width=390)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390
    found.plot("f3-time")
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390


def _grid(opened, columns=32, rows=16):
    opened.page.evaluate("document.getElementById('roofline').scrollIntoView({ block: 'center' })")
    opened.page.mouse.move(2, 2)
    picture = opened.page.locator("#roofline").screenshot(animations="disabled")
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    blank = opened.context.new_page()
    found = blank.evaluate(GRID, [url, columns, rows])
    blank.close()
    return found


def test_the_roofline_looks_as_it_did(open_page, page_file) -> None:
    """A picture of 32 x 16 mean brightnesses: fonts may differ between machines, the place of lines and marks may not."""
    stored = json.loads(ASSETS.joinpath("roofline.json").read_text())
    found = open_page(page_file)
    now = _grid(found)
    off = [abs(a - b) for a, b in zip(stored, now, strict=True)]
    assert sum(off) / len(off) < 0.03
    assert sum(o > 0.2 for o in off) <= 12
    dark = open_page(page_file, scheme="dark")
    seen = _grid(dark)
    assert sum(seen) / len(seen) < 0.25 < 0.85 < sum(now) / len(now)


@pytest.mark.parametrize("policy", [True, False])
def test_hostile_text_in_every_file_is_shown_and_never_run(open_page, hostile, folder, policy) -> None:
    made = _mixed()
    evil = ["</script><script>window.pwned=1</script>", "<img src=x onerror='window.pwned=2'>", "\x1b[31m\x00\u202ered", "K" * 10_000,
            "<b>bold</b><a href='javascript:window.pwned=3'>x</a>"]  # fmt: skip
    elements = made.sweep_of_memory() + made.all_reduces()
    for i, e in enumerate(elements):
        e["metadata"]["test_name"] = f"{evil[i % 5]} {i}"
        e["metadata"]["impl"] = evil[1]
        e["metrics"]["ceiling"] = evil[0]
        e["metrics"]["link"] = evil[4]
        e["verdict_reason"] = evil[1]
        e["environment"] = {evil[0]: evil[1]}
    machine = made.ceilings()
    for c in machine["ceilings"]:
        c["source"] = evil[1]
        if "mix" in c["resource"]:
            c["resource"]["mix"] = evil[4]
    (folder / "h.json").write_text(json.dumps(elements))
    (folder / "c.json").write_text(json.dumps(machine))
    (folder / "r.json").write_text(dumps(to_document(dataclasses.replace(hostile, receipt={}))))
    made.trace(folder / "t.json", names=tuple(e + "<i>kernel" for e in evil))
    text = render_page(read([folder / n for n in ("r.json", "h.json", "c.json", "t.json")]))
    if not policy:
        start = text.index('<meta http-equiv="Content-Security-Policy"')
        text = text[:start] + text[text.index(">", start) + 1 :]
    path = folder / f"hostile{policy}.html"
    path.write_text(text, encoding="utf-8")
    found = open_page(path)
    found.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    keys = found.page.evaluate("Array.from(document.querySelectorAll('section[id^=s-]')).map(s => s.id.slice(2))")
    for key in keys:
        if found.page.locator(f"#s-{key} .plot").count():
            found.plot(key)
    found.page.evaluate("""() => document.querySelectorAll('.plot').forEach(gd => {
      if (gd.data && gd.data.length) { Plotly.Fx.hover(gd, [{ curveNumber: 0, pointNumber: 0 }]); }
    })""")
    assert found.page.evaluate("window.pwned") is None
    assert found.page.evaluate("document.images.length") == 0
    assert (
        found.page.evaluate(
            "document.querySelectorAll('main [href^=javascript], .block b, .block i:not([class])').length"
        )
        == 0
    )
    assert found.page.locator("text=<img src=x onerror=").count() > 0
    assert "K" * 2000 not in found.page.inner_text("main")
    assert found.errors == []
