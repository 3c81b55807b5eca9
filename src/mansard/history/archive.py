"""A baseline as one file: its entries with their raw documents, to move it between stores."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mansard.core.document import damage_in_words, header
from mansard.core.errors import InputError
from mansard.history.store import STATES, Store

SCHEMA = "baseline_archive/1"


def archive_of(store: Store, name: str) -> dict[str, Any]:
    """Return the archive of a baseline.

    Raises:
        InputError: there is no such baseline, or a document is lost.
    """
    entries = [
        {
            "state": e.state, "reason": e.reason, "added": e.added, "source": e.stored.source, "sha256": e.stored.sha256,
            "labels": {k: dict(v) for k, v in e.stored.labels.items()}, "form": e.stored.form,
            "document_base64": base64.b64encode(store.raw(e.stored.sha256)).decode("ascii"),
        }
        for e in store.baseline(name).entries
    ]  # fmt: skip
    return {**header(SCHEMA, {}), "name": name, "entries": entries}


def is_archive(raw: bytes) -> bool:
    """Return whether a file is an archive."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("schema") == SCHEMA


def read_archive(store: Store, raw: bytes, *, source: str) -> list[str]:
    """Put the entries of an archive into a store and return the name of the baseline.

    Raises:
        InputError: it is damaged, or the baseline exists with other results.
    """
    try:
        content = json.loads(raw)
        name = content["name"]
        entries = [_entry(e) for e in content["entries"]]
        if not isinstance(name, str) or not name:
            raise TypeError(f"its name is {name!r}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
        raise InputError(f"{source} is a damaged archive: {damage_in_words(error)}") from None
    for e, document in entries:
        if hashlib.sha256(document).hexdigest() != e["sha256"]:
            raise InputError(f"{source}: the document {e['sha256'][:12]} was changed")
    have = {s.name for s in store.baselines()}
    if name in have:
        known = {e.stored.sha256 for e in store.baseline(name).entries}
        if not known <= {e["sha256"] for e, _ in entries}:
            raise InputError(f"baseline {name!r} exists with other results", hint=f"mansard baseline rm {name}")
    for e, document in entries:
        store.put(
            name, document, source=e["source"], state=e["state"], reason=e["reason"], labels=e["labels"], added=e["added"],
            form=e["form"],
        )  # fmt: skip
    return [name]


def _entry(e: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return an entry whose parts are of the right kinds, and its document; `form` is not told by archives of the first versions."""
    kept: dict[str, Any] = {k: e[k] for k in ("source", "sha256", "state", "reason", "added")} | {
        "form": e.get("form", "auto")
    }
    for key, value in kept.items():
        if not isinstance(value, str):
            raise TypeError(f"{key} of an entry is {value!r}")
    if kept["state"] not in STATES:
        raise ValueError(f"the state of an entry is {kept['state']!r}, expected one of {', '.join(STATES)}")
    kept["labels"] = {str(c): {str(k): str(v) for k, v in parts.items()} for c, parts in e["labels"].items()}
    return kept, base64.b64decode(e["document_base64"], validate=True)
