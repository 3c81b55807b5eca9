"""Are two results comparable? What each depends on, and what differs.

The components fall in two classes. *Conditions* (device, count, topology, clock policy, place, types, shapes, data, configuration)
must agree: a difference makes two results not comparable. *Subjects* (driver, framework, runtime, container image, source revision)
are what one compares for: a new driver or image is why a benchmark runs a second time, so a difference is printed, and does not forbid
the comparison unless the caller wants it to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core.errors import UsageError
from mansard.history.records import Fingerprint, Measurement

CONDITIONS = (
    "device",
    "device_count",
    "topology",
    "clock_policy",
    "region",
    "zone",
    "dtype",
    "shapes",
    "data",
    "config",
)
SUBJECTS = ("driver", "framework", "runtime", "image", "revision")
COMPONENTS = (*CONDITIONS, *SUBJECTS)

#: Component -> keys of an `environment` that tell it. Keys that say the same thing share a name, so that documents of several kinds
#: can be compared.
_KEYS: Mapping[str, Mapping[str, str]] = {
    "device": {
        "device": "name", "device_name": "name", "gpu": "name", "gpu_name": "name", "accelerator": "name", "chip": "name",
        "cpu_model": "cpu", "cpu": "cpu", "architecture": "architecture", "machine": "machine", "memory_bytes": "memory_bytes",
    },
    "device_count": {
        "device_count": "devices", "devices": "devices", "gpus": "devices", "num_gpus": "devices", "gpu_count": "devices",
        "world_size": "ranks", "ranks": "ranks", "nodes": "nodes", "node_count": "nodes",
    },
    "topology": {
        "topology": "topology", "interconnect": "interconnect", "mesh": "mesh", "mig": "mig", "threads": "threads",
        "interop_threads": "interop_threads", "cgroup_cpus": "cgroup_cpus", "cpus_used": "cpus_used",
    },
    "clock_policy": {
        "clock_policy": "policy", "governor": "governor", "clocks_locked": "locked", "power_limit_w": "power_limit_w",
        "boost": "boost",
    },
    "region": {"region": "region"},
    "zone": {"zone": "zone"},
    "dtype": {"dtype": "dtype"},
    "shapes": {"shapes": "shapes"},
    "data": {"data": "data", "dataset": "data"},
    "config": {
        "program": "program", "model": "model", "phase": "phase", "huge_pages": "huge_pages", "tuning_variables": "variables",
        "config_hash": "hash", "float32_matmul_precision": "float32_matmul_precision", "mkldnn": "mkldnn",
    },
    "driver": {"driver": "driver", "driver_version": "driver", "nvidia_driver": "driver", "rocm": "rocm"},
    "framework": {
        "torch": "torch", "jax": "jax", "jaxlib": "jaxlib", "numpy": "numpy", "numba": "numba", "tensorflow": "tensorflow",
        "framework": "framework", "engine": "engine",
    },
    "runtime": {
        "python": "python", "kernel": "kernel", "cuda": "cuda", "cuda_version": "cuda", "cudnn": "cudnn", "nccl": "nccl",
        "runtime": "runtime", "compiler": "compiler",
    },
    "image": {"image": "image", "container_image": "image"},
    "revision": {"commit": "commit", "revision": "commit", "git_commit": "commit"},
}  # fmt: skip


def fingerprint_of(environment: Mapping[str, Any]) -> Fingerprint:
    """Return the fingerprint that an `environment` tells.

    Args:
        environment: The `environment` of a document, with a nested `versions` where it has one.

    >>> fingerprint_of({"gpu": "H100", "gpus": 8}).parts
    {'device': {'name': 'H100'}, 'device_count': {'devices': '8'}}
    """
    nested = environment.get("versions")
    flat = {**(nested if isinstance(nested, Mapping) else {}), **environment}
    parts: dict[str, dict[str, str]] = {}
    for component, keys in _KEYS.items():
        for key, name in keys.items():
            value = flat.get(key)
            if value is not None and value != "" and not (isinstance(value, Mapping) and "unknown" in value):
                parts.setdefault(component, {})[name] = in_words(value)
    return Fingerprint(parts=parts)


def in_words(value: Any) -> str:
    """Return a value as text that is equal for equal values, whatever the order of keys.

    >>> in_words({"b": 1, "a": 2.0}), in_words(8.0), in_words("x")
    ('{"a": 2, "b": 1}', '8', 'x')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(_plain(value), sort_keys=True, default=str)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digest(value: Any) -> str:
    """Return a short hash of a value, equal for equal values.

    >>> digest({"m": 1, "n": 2.0}) == digest({"n": 2, "m": 1})
    True
    """
    return hashlib.sha256(in_words(value).encode()).hexdigest()[:12]


def labels_of(labels: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return fingerprint parts that a person states as `component=value`.

    Raises:
        UsageError: no `=`, or no such component.

    >>> labels_of(["zone=europe-west4-b"])
    {'zone': {'zone': 'europe-west4-b'}}
    """
    parts: dict[str, dict[str, str]] = {}
    for label in labels:
        component, equals, value = label.partition("=")
        if not equals or not value:
            raise UsageError(
                f"label {label!r} has no value, expected COMPONENT=VALUE", hint="--label zone=europe-west4-b"
            )
        _known(component)
        name = next(iter(_KEYS[component].values()))
        parts.setdefault(component, {})[name] = value
    return parts


def _known(component: str) -> None:
    if component not in COMPONENTS:
        raise UsageError(f"unknown component {component!r}", hint=f"one of {', '.join(COMPONENTS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that two results do not share.

    Args:
        component: Which component.
        key: Which part of it.
        baseline, candidate: What each side says; empty where it does not tell.
        forbids: Whether it makes the two not comparable.
    """

    component: str
    key: str
    baseline: str
    candidate: str
    forbids: bool

    @property
    def text(self) -> str:
        """The difference in words."""
        where = self.component if self.key in (self.component, "name") else f"{self.component} ({self.key})"
        return f"{where}: {_short(self.baseline)} -> {_short(self.candidate)}"


def _short(text: str) -> str:
    return "not told" if not text else text if len(text) <= 60 else text[:57] + "..."


def differences(
    a: Fingerprint, b: Fingerprint, *, allow: Collection[str] = (), require: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return what differs between two fingerprints, what forbids a comparison first.

    Args:
        a, b: Baseline and candidate.
        allow: Conditions that may differ.
        require: Subjects that must agree too.

    What only one side tells is listed and forbids nothing: an older document may not have recorded it.

    >>> x, y = fingerprint_of({"gpus": 8, "driver": "580"}), fingerprint_of({"gpus": 4, "driver": "590"})
    >>> [(d.component, d.forbids) for d in differences(x, y)]
    [('device_count', True), ('driver', False)]
    """
    for component in (*allow, *require):
        _known(component)
    found = []
    for component in COMPONENTS:
        left, right = a.parts.get(component, {}), b.parts.get(component, {})
        forbidding = (component in CONDITIONS and component not in allow) or component in require
        for key in sorted({*left, *right}):
            was, now = left.get(key, ""), right.get(key, "")
            if was != now:
                forbids = forbidding and bool(was) and bool(now)
                found.append(Difference(component=component, key=key, baseline=was, candidate=now, forbids=forbids))
    return tuple(sorted(found, key=lambda d: not d.forbids))


def merged_fingerprint(measurements: Iterable[Measurement]) -> Fingerprint:
    """Return what all measurements of a record share."""
    parts: dict[str, dict[str, str]] | None = None
    for m in measurements:
        mine = {c: dict(p) for c, p in m.fingerprint.parts.items()}
        if parts is None:
            parts = mine
        else:
            parts = {
                c: kept
                for c, p in parts.items()
                if (kept := {k: v for k, v in p.items() if mine.get(c, {}).get(k) == v})
            }
    return Fingerprint(parts=parts or {})
