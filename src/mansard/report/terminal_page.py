"""What every part of the terminal page writes on: its console, its limits, and how a text is cut to them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from mansard.report.text import clean, shorten

STYLES = {
    "compute": "blue", "memory": "yellow", "network": "magenta", "host": "green", "latency": "red",
    "undetermined": "bright_black", "unattributed": "bright_black",
}  # fmt: skip
#: Stands for a space at which a line must not break; no text holds it, since `clean` escapes private characters.
GLUE = "\ue000"
_LONGEST_WORD = 32
#: Lines of the brief page, without its roofline.
LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of each part a brief page shows; the headings say what is left out.

    Args:
        rows: Operators.
        advice: Pieces of advice.
        findings: Findings.
        ceilings: Ceilings that operators were judged against.
        facts: Facts of the receipt.
        notes: Lines of a reason why a headline figure is not known; 0 for all.
    """

    rows: int
    advice: int
    findings: int
    ceilings: int
    facts: int
    notes: int


#: Tried in this order until a brief page has at most `LINES` lines: no sentence is cut for room while a further item can wait.
LIMITS = (
    Limits(rows=7, advice=3, findings=3, ceilings=3, facts=3, notes=3),
    Limits(rows=7, advice=3, findings=3, ceilings=3, facts=1, notes=3),
    Limits(rows=6, advice=3, findings=2, ceilings=2, facts=1, notes=3),
    Limits(rows=5, advice=3, findings=2, ceilings=2, facts=0, notes=2),
    Limits(rows=5, advice=2, findings=2, ceilings=1, facts=0, notes=2),
    Limits(rows=4, advice=2, findings=1, ceilings=1, facts=0, notes=2),
    Limits(rows=3, advice=2, findings=1, ceilings=1, facts=0, notes=2),
    Limits(rows=3, advice=2, findings=1, ceilings=1, facts=0, notes=1),
    Limits(rows=3, advice=1, findings=1, ceilings=1, facts=0, notes=1),
    Limits(rows=2, advice=1, findings=1, ceilings=1, facts=0, notes=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Where the text goes, and with what means.

    Args:
        console: Collects the lines.
        ascii_only: Whether the reader's encoding is not UTF-8.
        verbose: Whether to show more rows and the whole receipt.
        brief: Whether to keep to forty lines of 80 columns; what is cut is with -v, in --json and in the report.
        limits: How much of each part a brief page shows.
    """

    console: Console
    ascii_only: bool
    verbose: bool
    brief: bool = False
    limits: Limits = LIMITS[0]

    @property
    def width(self) -> int:
        """Columns of the page."""
        return self.console.width

    @property
    def at_least(self) -> str:
        """The sign before a lower limit."""
        return ">=" if self.ascii_only else "\u2265"

    def clean(self, text: object) -> str:
        """Return foreign text without anything that a terminal would obey."""
        return clean(text, ascii_only=self.ascii_only)

    def tokens(self, text: str) -> str:
        """Return a text on a brief page with its long names cut in the middle."""
        if not self.brief:
            return text
        return " ".join(self.short(word, _LONGEST_WORD) for word in text.split(" "))

    def short(self, text: object, limit: int) -> str:
        """Return foreign text in at most `limit` columns of the terminal."""
        plain = self.clean(text)
        if cell_len(plain) <= limit:
            return plain
        cut = shorten(plain, limit, ellipsis="..." if self.ascii_only else "\u2026")
        return cut if cell_len(cut) <= limit else set_cell_size(plain, limit).rstrip()

    def heading(self, title: str, aside: str = "", *, close: bool = False) -> None:
        """Print a heading behind an empty line, which a brief page leaves out where `close` is set."""
        if not (close and self.brief):
            self.console.print()
        self.console.print(Text.assemble((title, "bold"), (f"  {aside}" if aside else "", "dim")))

    def wrapped(self, text: str, *, first: str = "  ", rest: str = "", style: str = "", lines: int = 0) -> None:
        """Print a paragraph with a hanging indent; more than `lines` lines are cut with a mark."""
        label = first.lstrip(" ") if rest else ""
        lead = first[: len(first) - len(first.lstrip(" "))] if rest else first
        hang = rest or " " * cell_len(first)
        room = max(10, self.width - max(cell_len(hang), cell_len(lead)))
        body = Text.assemble(label, (text.replace("\u2265", self.at_least), style)).wrap(self.console, room)
        shown = list(body)[: lines or None]
        if len(shown) < len(body):
            shown[-1] = _cut_at_a_word(shown[-1], max(4, room - 6))
        for index, line in enumerate(shown):
            line.rstrip()
            self.console.print(Text.assemble(lead if index == 0 else hang, line), soft_wrap=True)


def _cut_at_a_word(line: Text, room: int) -> Text:
    """Return a line that ends in a mark for what was left out, behind a whole word where there is one."""
    line.rstrip()
    if cell_len(line.plain) > room:
        kept = set_cell_size(line.plain, room)
        whole = kept if line.plain[len(kept.rstrip()) :].startswith(" ") else kept.rpartition(" ")[0]
        line.truncate(cell_len((whole if whole.strip() else kept).rstrip(" ,;:(")))
    line.append(" [...]")
    return line
