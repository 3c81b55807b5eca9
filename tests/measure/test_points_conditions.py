"""What the machine says of itself, read from folders that hold what Linux would show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mansard.measure.points import conditions
from mansard.measure.points.conditions import Accelerators, Watch, joined


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_highest_temperature_counts(tmp_path):
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "41250\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp2_input", "67500\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp1_input", "garbage\n")
    assert conditions.hwmon_temperature_c(tmp_path) == 67.5
    assert conditions.hwmon_temperature_c(tmp_path / "none") is None


def test_packages_are_added_and_their_parts_are_not(tmp_path):
    for name, energy in (("intel-rapl:0", "3000000"), ("intel-rapl:1", "2000000"), ("intel-rapl:0:0", "1000000")):
        write(tmp_path, f"sys/class/powercap/{name}/energy_uj", energy)
    assert conditions.rapl_energy_j(tmp_path) == 5.0
    assert conditions.rapl_energy_j(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("own", "path", "text", "seconds"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nthrottled_usec 250000\n", 0.25),
        ("3:cpu,cpuacct:/job\n", "sys/fs/cgroup/cpu/job/cpu.stat", "nr_throttled 2\nthrottled_time 70000000\n", 0.07),
    ],
)
def test_throttling_of_both_versions_of_control_groups(tmp_path, own, path, text, seconds):
    write(tmp_path, "proc/self/cgroup", own)
    write(tmp_path, path, text)
    assert conditions.throttled_s(tmp_path) == pytest.approx(seconds)


def test_cpufreq_gives_the_slowest_of_the_cores(tmp_path):
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3600000")
    write(tmp_path, "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "2400000")
    assert conditions.governor_clock_hz((0, 1), tmp_path) == 2.4e9
    assert conditions.governor_clock_hz((7,), tmp_path) is None


def test_a_window_sees_what_changed(tmp_path):
    clock = iter([10.0, 12.0])
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "proc/stat", "cpu  100 0 0 1000 0 0 0 10 0 0\ncpu0 1\ncpu1 1\n")
    write(tmp_path, "sys/fs/cgroup/job/cpu.stat", "throttled_usec 1000\n")
    write(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "1000000")
    write(tmp_path, "proc/loadavg", "1.5 1 1 1/1 1\n")
    with Watch(tmp_path, now=lambda: next(clock)) as watch:
        # 100 ticks more of user time, 20 of them stolen; a tick is 10 ms
        write(tmp_path, "proc/stat", "cpu  200 0 0 1100 0 0 0 30 0 0\ncpu0 1\ncpu1 1\n")
        write(tmp_path, "sys/fs/cgroup/job/cpu.stat", "throttled_usec 51000\n")
        write(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "41000000")
    seen = watch.seen
    assert seen["busy_s"] == pytest.approx(1.2)  # (200 + 30) - (100 + 10) ticks
    assert seen["steal_s"] == pytest.approx(0.2)
    assert seen["throttled_s"] == pytest.approx(0.05)
    found = joined([seen])
    assert found.power_w == pytest.approx(20.0)  # 40 J in 2 s
    assert found.steal_ratio == pytest.approx(0.05)  # 0.2 s of 2 s on 2 CPUs
    assert found.load_average == 1.5


def test_a_machine_that_shows_nothing_gives_none(tmp_path):
    with Watch(tmp_path) as watch:
        pass
    found = joined([watch.seen])
    assert found.foreign_ratio is None
    assert found.temperature_c is None
    assert found.power_w is None
    assert found.minor_faults is not None  # the kernel always counts those of this process


def test_what_an_accelerator_tells_is_kept_and_what_it_does_not_is_left_out():
    def refuse(_handle):
        raise RuntimeError("not supported")

    library = SimpleNamespace(
        NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetClockInfo=lambda h, _k: (1980, 1410)[h],
        nvmlDeviceGetTemperature=lambda h, _k: (40, 55)[h], nvmlDeviceGetPowerUsage=refuse,
    )  # fmt: skip
    assert Accelerators(library).seen() == {"clock_hz": 1.41e9, "temperature_c": 55.0}


def test_the_clock_is_estimated_where_numba_is():
    pytest.importorskip("numba")
    from mansard.measure.machine import choose_cpus

    clock = conditions.Clock(choose_cpus(1))
    try:
        found, source = clock.now()
    finally:
        clock.close()
    assert found is not None
    assert 1e8 < found < 1e10  # a processor, however busy
    assert "one-cycle" in source
