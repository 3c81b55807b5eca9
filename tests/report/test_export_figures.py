from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

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
        "the figures are of d.json:0, the busiest device; 1 others are not drawn"
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
