"""What can be wrong with a Kineto or Chrome trace, counted while it is read."""

from __future__ import annotations

from mansard.trace.timeline import Damage

#: Code -> sentence with the count, and whether events are missing because of it.
_WORDS: dict[str, tuple[str, bool]] = {
    "truncated": ("the file ends in the middle: what stands after the cut is missing", True),
    "truncated_after_events": ("the file ends early, after its last event: what describes the events is missing", False),
    "damaged_metadata": ("{n} parts beside the events are no valid JSON; what is readable of them is used", False),
    "text_after_end": ("text follows the end of the trace and is ignored", False),
    "byte_order_mark": ("the file starts with a byte order mark", False),
    "bad_utf8": ("{n} events hold bytes that are not UTF-8, shown as \ufffd", False),
    "not_a_number": ("{n} NaN or Infinity values, which JSON does not allow, are read as not recorded", False),
    "bad_escape": ("{n} invalid escapes in texts are read as they stand", False),
    "control_character": ("{n} events hold control characters inside texts, read as spaces", False),
    "trailing_comma": ("{n} commas before a closing bracket are ignored", False),
    "duplicate_keys": ("{n} keys are written twice; the last value counts", False),
    "empty_events": ("{n} empty events are ignored", False),
    "unreadable_events": ("{n} events cannot be read and are left out", True),
    "text_numbers": ("{n} times are written as texts; read as numbers", False),
    "missing_start": ("{n} events without a start are left out", True),
    "missing_duration": ("{n} events without a duration are left out", True),
    "bad_time": ("{n} events whose start or duration is no finite number are left out", True),
    "time_zero": ("{n} events that start at time 0 are left out: their start was not recorded", True),
    "big_integer": ("{n} integers beyond 64 bits are read as not recorded", False),
    "odd_arguments": ("{n} events have arguments that are no object; they are read without", False),
    "event_cap": ("the file holds exactly {n} complete events, the cap of a profiler: later ones are missing, and steps are not complete", True),
    "unpaired_begin": ("{n} events begin and never end, and are left out", True),
    "unpaired_end": ("{n} events end without a beginning, and are left out", True),
}  # fmt: skip


class Tally:
    """Counts of damage by code.

    >>> t = Tally(); t.add("bad_escape", 2); t.add("bad_escape", 1); t.found()[0].text
    '3 invalid escapes in texts are read as they stand'
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, code: str, count: int) -> None:
        """Count damage."""
        if count:
            self._counts[code] = self._counts.get(code, 0) + count

    def count(self, code: str) -> int:
        """Return how much damage of a kind was counted."""
        return self._counts.get(code, 0)

    def has(self, code: str) -> bool:
        """Return whether any damage of a kind was counted."""
        return code in self._counts

    def found(self) -> tuple[Damage, ...]:
        """Return the damage in the order it was met."""
        return tuple(
            Damage(code=code, text=_WORDS[code][0].format(n=count), count=count, incomplete=_WORDS[code][1])
            for code, count in self._counts.items()
        )
