"""The `diagnose` document of a profile: the keys of a run for the busiest device, and the other devices beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.diagnose.profile import DeviceDiagnosis
from mansard.report.document import to_document


def diagnose_document(found: Sequence[DeviceDiagnosis]) -> dict[str, Any]:
    """Return the document of a profile's diagnosis.

    Args:
        found: The diagnosis of each device, the busiest first.
    """
    first, *others = found
    document = to_document(first.diagnosis, schema="diagnose/1")
    document["device"] = first.label
    document["other_devices"] = [{"device": d.label, **to_document(d.diagnosis, schema="diagnose/1")} for d in others]
    return document
