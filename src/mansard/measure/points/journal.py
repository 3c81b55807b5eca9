"""What a run has of points that are not finished yet, so that a killed run loses one process of a batch and no more.

Points are measured together, process after process, and are finished together. After each process all that is known of
them goes into `unfinished.json`, which `--resume` reads; it is removed when nothing is unfinished.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mansard.core.document import to_jsonable
from mansard.measure.points.identity import key_of
from mansard.measure.points.taken import Taken
from mansard.measure.store import write_text

UNFINISHED = "unfinished.json"
SCHEMA = "unfinished/1"
#: What a worker said or took, in plain JSON; everything else of `Taken` is made again from the plan.
KEPT = ("groups", "seen", "prepared", "finished", "slopes", "rewarm_s", "stopped_by", "started", "work_s", "share")


def record_of(taken: Taken) -> dict[str, Any]:
    """Return what was measured of a point as JSON."""
    plain: dict[str, Any] = to_jsonable({name: getattr(taken, name) for name in KEPT})
    return plain


def restore(taken: Taken, record: dict[str, Any]) -> None:
    """Give a point what an earlier run measured of it."""
    for name in KEPT:
        setattr(taken, name, record[name])
    taken.slopes = [(float(step), float(fixed)) for step, fixed in record["slopes"]]
    taken.resumed = len(taken.groups)


@dataclasses.dataclass(slots=True)
class Journal:
    """The file of unfinished points in the folder of a run.

    Args:
        folder: The folder; None keeps nothing.
        plan: Hash of the plan it belongs to.
    """

    folder: Path | None
    plan: str

    def keep(self, batch: Sequence[Taken]) -> None:
        """Write what is known of the points under way."""
        if self.folder is None:
            return
        points = {key_of(t.point): record_of(t) for t in batch if not t.failure and t.groups}
        write_text(self.folder / UNFINISHED, json.dumps({"schema": SCHEMA, "plan": self.plan, "points": points}))

    def close(self) -> None:
        """Remove the file: what it held is in the results."""
        if self.folder is not None:
            (self.folder / UNFINISHED).unlink(missing_ok=True)

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what an earlier run of the same plan left behind, by key; nothing where it left nothing that can be used."""
        if self.folder is None:
            return {}
        try:
            found = json.loads((self.folder / UNFINISHED).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError):
            return {}
        if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("plan") != self.plan:
            return {}
        return {k: v for k, v in found["points"].items() if all(name in v for name in KEPT)}

    def restorer(self) -> Callable[[Taken], None]:
        """Return what gives a point back what the file holds of it."""
        records = self.read()

        def one(taken: Taken) -> None:
            record = records.get(key_of(taken.point))
            if record is not None:
                restore(taken, record)

        return one
