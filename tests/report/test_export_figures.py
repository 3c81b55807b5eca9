from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from IPython.core.formatters import DisplayFormatter
from PIL import Image

import mansard
from mansard.cli.export import command
from mansard.core import Implausible, Unknown, UsageError
from mansard.core.document import dumps
from mansard.report.document import to_document
from mansard.report.figures import figures
from mansard.report.figures_base import drawable
from mansard.report.notebook import register

HOSTILE = "$\\frac{1}{$ <script>alert(1)</script>\x00\u202e" + "K" * 10_000


@pytest.fixture
def odd(sample):
    first, second, third, *rest = sample.operators
    rows = (
        dataclasses.replace(first, name=HOSTILE),
        dataclasses.replace(second, share_of_ceiling=Unknown("no peak")),
        dataclasses.replace(third, share_of_ceiling=Implausible(3.0, ("the peak",))),
    )
    return dataclasses.replace(sample, operators=(*rows, *rest), program=HOSTILE)


def test_every_figure_in_every_form(tmp_path, odd) -> None:
    written = figures(odd, tmp_path / "f")
    assert [p.name for p in written] == [
        f"{n}.{f}" for n in ("roofline", "time", "operators") for f in ("svg", "png", "pdf")
    ]
    for path in written:
        if path.suffix == ".svg":
            root = ET.parse(path).getroot()
            assert root.get("width") == "241.2pt"  # 3.35 in x 72 pt/in: one column
            tags = {e.tag.rpartition("}")[2] for e in root.iter()}
            assert not tags & {
                "script",
                "image",
                "foreignObject",
                "text",
            }  # text is outlines: it looks the same everywhere
            assert not [
                e
                for e in root.iter()
                if any(k.rpartition("}")[2] == "href" and not v.startswith("#") for k, v in e.items())
            ]
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.verify()
                assert image.width == 1005  # 3.35 in x 300 dots/in
        else:
            content = path.read_bytes()
            assert content.startswith(b"%PDF-")
            assert b"/FontFile2" in content  # an embedded TrueType font
            assert b"/Subtype /Type3" not in content


def test_the_same_result_gives_the_same_file(tmp_path, sample) -> None:
    for name in ("a", "b"):
        figures(sample, tmp_path / name, ("svg",))
    assert (tmp_path / "a" / "time.svg").read_bytes() == (tmp_path / "b" / "time.svg").read_bytes()


def test_a_run_without_operators_or_ceilings_is_drawn(tmp_path, sample) -> None:
    empty = dataclasses.replace(sample, operators=(), ceilings=(), parts=())
    assert len(figures(empty, tmp_path, ("png",))) == 3


def test_nothing_is_overwritten_and_forms_are_named(tmp_path, sample) -> None:
    (tmp_path / "time.svg").write_text("mine")
    with pytest.raises(UsageError, match=r"time\.svg exists"):
        figures(sample, tmp_path, ("svg",))
    assert not (tmp_path / "roofline.svg").exists()
    with pytest.raises(UsageError, match="unknown figure format"):
        figures(sample, tmp_path, ("gif",))


def test_the_verb(tmp_path, sample) -> None:
    path = tmp_path / "run.json"
    path.write_text(dumps(to_document(sample)))
    result = CliRunner().invoke(command, ["figures", str(path), "-o", str(tmp_path / "f"), "--as", "png"])
    assert result.exit_code == 0
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["operators.png", "roofline.png", "time.png"]
    assert isinstance(CliRunner().invoke(command, ["figures", str(path)]).exception, UsageError)


def test_of_several_devices_the_busiest_is_drawn_and_the_others_are_named(tmp_path, sample) -> None:
    document = to_document(sample, schema="diagnose/1")
    path = tmp_path / "d.json"
    path.write_text(dumps({**document, "device": "0", "other_devices": [{**document, "device": "1"}]}))
    result = CliRunner().invoke(command, ["figures", str(path), "-o", str(tmp_path / "f"), "--as", "png", "--json"])
    assert json.loads(result.stdout)["notes"] == [
        "the figures are of d.json:0, the busiest device; 1 other is not drawn"
    ]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data) -> None:
        self.text += data


def test_records_display_themselves_in_ipython(odd) -> None:
    formatter = DisplayFormatter()
    register(formatter)
    data, _ = formatter.format(odd)
    page = _Page()
    page.feed(data["text/html"])
    assert set(page.tags) <= {"div", "p", "b", "small", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.attributes <= {"style"}
    assert odd.verdict.sentence in page.text
    assert "<script>" in page.text  # as text
    assert "and 14 more rows" in page.text  # 26 operators, 12 shown
    assert len(data["text/html"]) < 20_000


def test_the_extension_registers(odd) -> None:
    class Shell:
        display_formatter = DisplayFormatter()

    mansard.load_ipython_extension(Shell())
    assert "text/html" in Shell.display_formatter.format(odd)[0]


def test_show_is_text_in_a_terminal_and_refuses_what_it_does_not_know(sample) -> None:
    assert "Compute-bound" in repr(mansard.show(sample))
    assert "<table>" in mansard.show(sample)._repr_html_()
    with pytest.raises(UsageError):
        mansard.show(object())


def test_every_text_of_a_figure_is_seven_points_and_a_chart_without_ceilings_says_so(sample) -> None:
    from matplotlib import rc_context
    from matplotlib.text import Text

    from mansard.report import figures_base
    from mansard.report.figures import figures_of_run

    bare = dataclasses.replace(sample, ceilings=())
    with rc_context(figures_base._STYLE):
        for run in (sample, bare):
            drawn = {name: draw() for name, (_, draw) in figures_of_run(run).items()}
            sizes = {t.get_fontsize() for f in drawn.values() for t in f.findobj(Text) if t.get_text()}
            assert sizes == {7.0}
        said = " ".join(t.get_text() for t in drawn["roofline"].findobj(Text))
    assert "no ceiling is known" in said


@pytest.mark.parametrize(("low", "high", "least"), [(1e9, 9e9, 3), (2e9, 7e10, 3), (1e9, 1e12, 4)])
def test_an_axis_of_few_decades_has_several_labels(low, high, least) -> None:
    from mansard.report.figures_base import log_axis, new_figure

    figure, axes = new_figure(2.0)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    log_axis(axes.yaxis, str, low, high)
    figure.draw_without_rendering()
    seen = [t for t in axes.yaxis.get_majorticklocs() if low <= t <= high]
    assert len(seen) >= least


def test_letters_of_lines_keep_apart() -> None:
    import math

    from mansard.report.figures_base import letters_on_lines, new_figure

    figure, axes = new_figure(2.0)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    # Four lines that almost lie on each other, with the same places to choose from.
    lines = [[(x, 50 + i) for x in range(5, 100, 5)] for i in range(4)]
    letters_on_lines(figure, axes, lines, [(5.0, 50.0)])
    spots = [tuple(axes.transData.transform(t.xy) / (figure.dpi / 72)) for t in axes.texts]
    assert [t.get_text() for t in axes.texts] == list("abcd")
    assert min(math.dist(p, q) for i, p in enumerate(spots) for q in spots[:i]) >= 9.0  # points: more than a letter


def test_report_figures_draws_runs_and_points(tmp_path, sample) -> None:
    from mansard.cli.report import command as report

    spec = importlib.util.spec_from_file_location("report_mixed_f", Path(__file__).with_name("mixed.py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    (tmp_path / "run.json").write_text(dumps(to_document(sample)))
    (tmp_path / "detailed.json").write_text(
        json.dumps(made.sweep_of_memory() + made.sweep_of_gemm() + made.all_reduces())
    )
    files = [str(tmp_path / n) for n in ("run.json", "detailed.json")]
    out = ["-o", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f"), "--as", "svg"]
    result = CliRunner().invoke(report, [*files, *out, "--json"])
    assert result.exit_code == 0, result.exception
    written = json.loads(result.stdout)["figures"]
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == sorted(Path(w).name for w in written)
    names = {Path(w).stem for w in written}
    assert {"roofline", "time", "operators", "bandwidth-against-working-set", "achieved-flop-s-against-n",
            "time-of-transfers-against-size", "bus-bandwidth-against-size"} <= names  # fmt: skip
    for file in written:
        assert ET.parse(file).getroot().get("width") == "241.2pt"
    (tmp_path / "p.html").unlink()
    assert isinstance(CliRunner().invoke(report, [*files, *out]).exception, UsageError)  # figures that exist
    assert not (tmp_path / "p.html").exists()


@pytest.mark.filterwarnings("error")
def test_characters_that_the_font_lacks_are_escapes(sample, tmp_path) -> None:
    named = tuple(dataclasses.replace(o, name="\u5f20" + o.name) for o in sample.operators[:3])
    assert figures(dataclasses.replace(sample, operators=named), tmp_path, ("svg",))
    assert drawable("\u5f20 \u00b5s") == "\\u5f20 \u00b5s"
