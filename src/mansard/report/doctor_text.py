"""What `mansard doctor` found, in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_binary_bytes, format_bytes, format_hz, format_ratio
from mansard.hardware.detect import Detection
from mansard.hardware.surroundings import Ability
from mansard.report.hardware_text import columns, device_lines


def doctor_lines(found: Detection, facts: Mapping[str, Any], able: Sequence[Ability], noise: Mapping[str, Any],
                 kept: str, *, width: int | None = None) -> list[str]:  # fmt: skip
    """Return devices, machine, software, noise, and what can and cannot be measured, in lines of at most `width` characters."""
    out = ["Hardware, as named" if found.explicit else "Devices"]
    out += [f"  {line}" for line in device_lines(found, width=None if width is None else width - 2)]
    out += ["", "Machine", *columns(_machine(facts), width=width)]
    versions = ", ".join(f"{k} {v}" for k, v in {**facts["backends"], **facts["plugins"]}.items())
    out += ["", "Software", *columns([["python", facts["python"]], ["kernel", facts["kernel"]],
                                      ["packages", versions or "none of those that matter"]], width=width)]  # fmt: skip
    out += ["", "Noise", *columns(_noise(noise), width=width), f"  ceilings   {kept}"]
    for head, can in (("Can be measured here", True), ("Cannot be measured here", False)):
        rows = [[a.what, a.why + (f"; needs: {', '.join(a.needs)}" if a.needs else "")] for a in able if a.can is can]
        if rows:
            out += ["", head, *columns(rows, width=width)]
    return out


def _machine(facts: Mapping[str, Any]) -> list[list[str]]:
    cpus = f"{len(facts['cpus_allowed'])} allowed"
    if facts["cgroup_cpus"] is not None:
        cpus += f", quota {facts['cgroup_cpus']:g}"
    if facts["numa_nodes"]:
        cpus += f", {facts['numa_nodes']} NUMA node(s)"
    rows = [["processor", facts["cpu_model"] + (", a virtual machine" if facts["guest"] else "")], ["CPUs", cpus]]
    size, free = facts["memory_bytes"], facts["memory_available_bytes"]
    if size:
        rows.append(["memory", format_bytes(size) + (f", {format_bytes(free)} available" if free else "")])
    rows += [
        [f"L{c['level']} cache", f"{c['count']} x {format_binary_bytes(c['size_bytes'])}, {c['cpus_each']} CPU(s) each"]
        for c in facts["caches"]
    ]
    clock = facts["clocks"]
    if clock["readable"]:
        parts = [f"governor {clock['governor']}"]
        parts += [
            f"{word} {format_hz(clock[key])}" for word, key in (("now", "now_hz"), ("at most", "max_hz")) if clock[key]
        ]
        rows.append(["clock", ", ".join(parts)])
    else:
        rows.append(["clock", clock["why"]])
    rows.append(["huge pages", facts["huge_pages"]])
    for x in facts["launchers"]:
        if x["active"]:
            rows.append(["launcher", f"{x['name']}, rank {x['rank']} of {x['world_size']}"])
    return rows


def _noise(noise: Mapping[str, Any]) -> list[list[str]]:
    if noise["foreign_load_ratio"] is None:
        return [["others use", noise["why"]]]
    load, steal = noise["foreign_load_ratio"], noise["steal_ratio"]
    word = "quiet" if noise["quiet"] else "busy: measurements are lower bounds"
    return [
        ["others use", f"{format_ratio(load)} of the CPUs ({word})"],
        ["taken away", f"{format_ratio(steal)} by the host"],
    ]
