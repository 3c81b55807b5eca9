"""The machine while a point is measured: clock, temperature, power, others' load, page faults, limits."""

from __future__ import annotations

import glob
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mansard.hardware.host import ROOT, read_text
from mansard.measure.load import parse_busy_ticks
from mansard.measure.points.result import Conditions

RAPL = "sys/class/powercap/*/energy_uj"
CLOCK_SPAN_S = 3e-4  # one look at the clock: short, so that a quiet moment is found between others' time slices
CLOCK_LOOKS = 6


def hwmon_temperature_c(root: Path = ROOT) -> float | None:
    """Return the highest temperature that /sys shows of a processor or package [degree C], or None."""
    found = []
    for path in glob.glob(str(root / "sys/class/hwmon/hwmon*/temp*_input")) + glob.glob(
        str(root / "sys/class/thermal/thermal_zone*/temp")
    ):
        text = read_text(Path(path))
        if text and text.lstrip("-").isdigit() and -40_000 < int(text) < 150_000:
            found.append(int(text) / 1000.0)
    return max(found, default=None)


def rapl_energy_j(root: Path = ROOT) -> float | None:
    """Return the energy counters of the processor packages, added [J]; None where they cannot be read.

    Only packages are added (`intel-rapl:0`), their parts (`intel-rapl:0:1`) are inside them.
    """
    total, seen = 0.0, False
    for path in glob.glob(str(root / RAPL)):
        if Path(path).parent.name.count(":") != 1:
            continue
        text = read_text(Path(path))
        if text and text.isdigit():
            total, seen = total + int(text) * 1e-6, True
    return total if seen else None


def throttled_s(root: Path = ROOT) -> float | None:
    """Return how long the control group of this process was throttled so far [s] (cgroup v2, then v1), or None."""
    own = read_text(root / "proc/self/cgroup") or ""
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        for folder in (base / path.lstrip("/"), base):
            text = read_text(folder / "cpu.stat") or ""
            fields = dict(pair.split() for pair in text.splitlines() if len(pair.split()) == 2)
            if "throttled_usec" in fields:
                return int(fields["throttled_usec"]) * 1e-6
            if "throttled_time" in fields:
                return int(fields["throttled_time"]) * 1e-9
    return None


def load_average(root: Path = ROOT) -> float | None:
    """Return the one-minute load, or None."""
    text = (read_text(root / "proc/loadavg") or "").split()
    return float(text[0]) if text else None


def governor_clock_hz(cpus: Sequence[int], root: Path = ROOT) -> float | None:
    """Return the lowest current frequency that cpufreq shows of the CPUs [Hz]; None where there is no cpufreq."""
    found = []
    for cpu in cpus:
        text = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        if text and text.isdigit():
            found.append(int(text) * 1e3)
    return min(found, default=None)


class Clock:
    """The real frequency of the cores, by a chain of dependent one-cycle operations on each of them.

    It works where the machine hides its frequency, as virtual machines do. Of several short looks the fastest counts: a
    look that was interrupted shows a lower clock than there is.

    Args:
        cpus: The cores to look at.
        root: Root of the file system, for cpufreq where there is no numba.
    """

    def __init__(self, cpus: Sequence[int], root: Path = ROOT) -> None:
        from mansard.measure import kernels

        self._cpus, self._root = tuple(cpus), root
        self._team: Any = None
        self._steps = 0
        if kernels.available():
            from mansard.measure.team import Team

            self._team = Team(self._cpus[:1])
            self._kernel = kernels.clock_kernel()
            self._factor = float(kernels.CLOCK_STEPS)
            self._steps = int(CLOCK_SPAN_S * 4e9 / self._factor)
            self._look(2)

    def _look(self, samples: int) -> float:
        wall_s, _ = self._team.sample(self._kernel, lambda _i: (self._steps, 12345, 987_654_321), samples)
        return float(self._factor * self._steps / wall_s.min())

    def now(self) -> tuple[float | None, str]:
        """Return the clock of the first core [Hz] and how it was found out."""
        if self._team is not None:
            return self._look(CLOCK_LOOKS), "dependent one-cycle operations, best of short looks"
        shown = governor_clock_hz(self._cpus, self._root)
        if shown is not None:
            return shown, "cpufreq"
        return None, "neither numba nor cpufreq is here"

    def close(self) -> None:
        """End the thread."""
        if self._team is not None:
            self._team.__exit__(None, None, None)


class Watch:
    """What changes in the worker while samples are taken, as a context manager; `seen` holds it afterwards.

    `seen` is a plain mapping with the span of the window, so that the windows of a point can be joined.

    Source: proc(5), getrusage(2), the kernel's powercap and hwmon interfaces.
    """

    def __init__(self, root: Path = ROOT, now: Callable[[], float] = time.monotonic) -> None:
        self._root, self._now = root, now
        self.seen: dict[str, Any] = {}

    def _look(self) -> dict[str, float | None]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        stat = read_text(self._root / "proc/stat")
        busy, steal, cpus = parse_busy_ticks(stat) if stat else (None, None, None)
        return {
            "wall_s": self._now(),
            "own_s": usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime,
            "minor_faults": usage.ru_minflt,
            "major_faults": usage.ru_majflt,
            "busy": busy,
            "steal": steal,
            "cpus": cpus,
            "throttled_s": throttled_s(self._root),
            "energy_j": rapl_energy_j(self._root),
        }

    def __enter__(self) -> Watch:
        self._before = self._look()
        return self

    def __exit__(self, *_error: object) -> None:
        after, before = self._look(), self._before
        changed: dict[str, Any] = {}
        for key, value in after.items():
            old = before[key]
            changed[key] = None if value is None or old is None else value - old
        wall = changed["wall_s"]
        tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self.seen = {
            "wall_s": wall,
            "own_s": changed["own_s"],
            "cpus": after["cpus"],
            "busy_s": None if changed["busy"] is None else changed["busy"] * tick,
            "steal_s": None if changed["steal"] is None else changed["steal"] * tick,
            "minor_faults": changed["minor_faults"],
            "major_faults": changed["major_faults"],
            "throttled_s": changed["throttled_s"],
            "energy_j": changed["energy_j"],
            "temperature_c": hwmon_temperature_c(self._root),
            "load_average": load_average(self._root),
        }


def joined(windows: Sequence[Mapping[str, Any]]) -> Conditions:
    """Return the conditions of a point from those of its windows.

    Args:
        windows: What `Watch` saw, with `clock_hz`, `clock_source`, `power_w` and `temperature_c` added where something
            else told them.

    Shares are those of all windows together: a tick of 10 ms says little in one of them.

    >>> a = {"wall_s": 1.0, "own_s": 1.0, "cpus": 2, "busy_s": 1.2, "steal_s": 0.1, "minor_faults": 3, "clock_hz": 4e9}
    >>> c = joined([a, {**a, "clock_hz": 3e9, "minor_faults": 5}])
    >>> round(c.foreign_ratio, 3), round(c.steal_ratio, 3), c.minor_faults, c.clock_hz
    (0.1, 0.05, 8, 3500000000.0)
    """

    def values(key: str) -> list[float]:
        return [float(w[key]) for w in windows if w.get(key) is not None]

    def whole(key: str) -> float | None:
        found = values(key)
        return sum(found) if found else None

    span = sum(float(w.get("wall_s") or 0.0) * float(w.get("cpus") or 0) for w in windows)
    wall = whole("wall_s") or 0.0
    busy, own, steal, energy = whole("busy_s"), whole("own_s"), whole("steal_s"), whole("energy_j")
    power = values("power_w")
    minor, major = whole("minor_faults"), whole("major_faults")
    clocks = values("clock_hz")
    return Conditions(
        clock_hz=float(np.median(clocks)) if clocks else None,
        clock_source=next((str(w["clock_source"]) for w in windows if w.get("clock_source")), ""),
        temperature_c=max(values("temperature_c"), default=None),
        power_w=max(power) if power else energy / wall if energy is not None and wall > 0 and energy >= 0 else None,
        steal_ratio=min(1.0, steal / span) if steal is not None and span > 0 else None,
        foreign_ratio=min(1.0, max(0.0, (busy - own) / span))
        if busy is not None and own is not None and span > 0
        else None,
        load_average=max(values("load_average"), default=None),
        minor_faults=int(minor) if minor is not None else None,
        major_faults=int(major) if major is not None else None,
        throttled_s=whole("throttled_s"),
        cores_used=own / wall if own is not None and wall > 0 else None,
    )


BUSY_RATIO = 0.08
STEAL_RATIO = 0.02


def calm(seen: Conditions) -> bool:
    """Return whether hardly anybody else used the processors: what the samples do is then the machine's own doing."""
    return (seen.foreign_ratio or 0.0) <= BUSY_RATIO and (seen.steal_ratio or 0.0) <= STEAL_RATIO


class Accelerators:
    """Clock, temperature and power of NVIDIA devices through NVML, where the library and a driver are there."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._handles: list[Any] = []
        if library is None:
            try:
                import pynvml

                self._library = pynvml
            except ImportError:
                return
        try:
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
            self._handles = [self._library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except Exception:  # NVMLError of a version that may not be importable: no driver, no device
            self._handles = []

    def seen(self) -> dict[str, float]:
        """Return the lowest SM clock [Hz], the highest temperature [degree C] and the highest power [W] of the devices."""
        lib: Any = self._library
        found: dict[str, list[float]] = {}
        for handle in self._handles:
            asks: tuple[tuple[str, Callable[[], Any], float], ...] = (
                ("clock_hz", lambda h=handle: lib.nvmlDeviceGetClockInfo(h, lib.NVML_CLOCK_SM), 1e6),  # type: ignore[misc]
                ("temperature_c", lambda h=handle: lib.nvmlDeviceGetTemperature(h, lib.NVML_TEMPERATURE_GPU), 1.0),  # type: ignore[misc]
                ("power_w", lambda h=handle: lib.nvmlDeviceGetPowerUsage(h), 1e-3),  # type: ignore[misc]
            )
            for key, ask, factor in asks:
                try:
                    found.setdefault(key, []).append(float(ask()) * factor)
                except Exception:  # not every device tells everything
                    continue
        return {key: (min if key == "clock_hz" else max)(values) for key, values in found.items() if values}
