"""Reading /proc and /sys from a made-up machine."""

import pytest

from mansard.measure.buffers import parse_huge_ratio
from mansard.measure.load import parse_busy_ticks
from mansard.measure.machine import (
    cgroup_cpus,
    choose_cpus,
    cpu_model,
    describe,
    fingerprint,
    huge_page_policy,
    meminfo,
    memory_levels,
    parse_cpu_list,
    parse_size,
    read_caches,
    tuning_variables,
)


def put(root, path, text):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n")


def add_cpu(root, cpu, siblings, l3):
    """One CPU with 48 KiB L1d, an L1i that must not count, 1 MiB L2, and a share of an L3."""
    base = f"sys/devices/system/cpu/cpu{cpu}"
    put(root, f"{base}/topology/thread_siblings_list", siblings)
    rows = [(1, "Data", "48K", siblings), (1, "Instruction", "32K", siblings), (2, "Unified", "1024K", siblings)]
    rows.append((3, "Unified", "32768K", l3))
    for index, (level, kind, size, shared) in enumerate(rows):
        for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            put(root, f"{base}/cache/index{index}/{name}", str(value))


@pytest.fixture
def two_ccx(tmp_path):
    """Eight CPUs: four cores of two threads (0-4, 1-5, 2-6, 3-7), an L3 for cores 0-1 and one for cores 2-3."""
    for cpu in range(8):
        core = cpu % 4
        add_cpu(tmp_path, cpu, f"{core},{core + 4}", "0-1,4-5" if core < 2 else "2-3,6-7")
    put(tmp_path, "proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB")
    return tmp_path


def test_lists_and_sizes():
    assert parse_cpu_list("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("") == ()
    assert parse_size("32768K") == 32768 * 1024 == 33554432
    with pytest.raises(ValueError, match="not a cache size"):
        parse_size("big")


def test_a_split_l3_counts_once_per_instance(two_ccx):
    caches = read_caches(range(8), two_ccx)
    # 4 cores x (L1d + L2) + 2 L3; the instruction caches do not count
    assert len(caches) == 4 + 4 + 2
    levels = {v.level: v for v in memory_levels(caches, meminfo("MemTotal", two_ccx))}
    assert list(levels) == ["l1", "l2", "l3", "dram"]
    assert (levels["l3"].capacity_bytes, levels["l3"].instances) == (33554432.0, 2)
    assert levels["l3"].capacity("node") == 2 * 33554432.0
    assert levels["l3"].capacity("core") == 33554432.0
    assert levels["l1"].capacity("node") == 4 * 48 * 1024
    assert levels["dram"].capacity_bytes == 16384000 * 1024


def test_the_mask_narrows_what_is_within_reach(two_ccx):
    levels = {v.level: v for v in memory_levels(read_caches((0, 1), two_ccx), None)}
    assert (levels["l3"].instances, levels["l2"].instances) == (1, 2)
    assert "dram" not in levels


def test_offline_cpus_and_missing_folders_contribute_nothing(two_ccx, tmp_path_factory):
    assert len(read_caches((0, 99), two_ccx)) == 3
    assert read_caches((0, 1), tmp_path_factory.mktemp("empty")) == ()
    assert memory_levels((), 1e9)[0].level == "dram"


def test_physical_cores_come_before_siblings(two_ccx):
    assert choose_cpus(4, mask=range(8), root=two_ccx) == (0, 1, 2, 3)
    assert choose_cpus(5, mask=range(8), root=two_ccx) == (0, 1, 2, 3, 4)
    # in a mask without CPU 0, CPU 4 is the first of its core
    assert choose_cpus(3, mask=(1, 4, 5), root=two_ccx) == (1, 4, 5)
    assert choose_cpus(2, mask=(1, 4, 5), root=two_ccx) == (1, 4)


def test_the_quota_limits_the_team(two_ccx):
    put(two_ccx, "proc/self/cgroup", "0::/job")
    put(two_ccx, "sys/fs/cgroup/job/cpu.max", "250000 100000")
    assert cgroup_cpus(two_ccx) == 2.5
    assert len(choose_cpus(None, mask=range(8), root=two_ccx)) == 2  # 2.5 CPUs pay for 2 threads
    put(two_ccx, "sys/fs/cgroup/job/cpu.max", "max 100000")
    assert cgroup_cpus(two_ccx) is None


def test_the_old_quota_is_read_too(tmp_path):
    put(tmp_path, "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x")
    put(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1")
    put(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
    assert cgroup_cpus(tmp_path) is None
    put(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000")
    assert cgroup_cpus(tmp_path) == 4.0


def test_the_model_tells_generations_apart(tmp_path):
    put(
        tmp_path,
        "proc/cpuinfo",
        "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1",
    )
    assert cpu_model(tmp_path) == "AMD EPYC (family 26 model 2 stepping 1)"
    put(tmp_path, "proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd40")
    assert cpu_model(tmp_path) == "0x41 part 0xd40 variant 0x0"


def test_page_policy_and_page_share(tmp_path):
    assert huge_page_policy(tmp_path) == "unsupported"
    put(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    assert huge_page_policy(tmp_path) == "madvise"
    smaps = (
        "1000-2000 rw-p 00000000 00:00 0\nRss: 4 kB\nAnonHugePages: 0 kB\n"
        "200000-a00000 rw-p 00000000 00:00 0\nRss: 8192 kB\nAnonHugePages: 6144 kB\n"
    )
    assert parse_huge_ratio(smaps, 0x300000) == 0.75
    assert parse_huge_ratio(smaps, 0xB00000) is None


def test_busy_ticks_leave_idle_and_iowait_out():
    stat = "cpu  100 5 50 1000 20 1 2 7 0 0\ncpu0 1\ncpu1 1\nintr 5"
    # user 100 + nice 5 + system 50 + irq 1 + softirq 2 + steal 7 = 165
    assert parse_busy_ticks(stat) == (165, 7, 2)


def test_tuning_variables_are_found():
    env = {"OPENBLAS_CORETYPE": "Haswell", "PATH": "/bin", "XLA_FLAGS": "--x"}
    assert tuning_variables(env) == {"OPENBLAS_CORETYPE": "Haswell", "XLA_FLAGS": "--x"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("cpu_model", "other"), ("cpus_used", [0]), ("versions", {"numpy": "9"}), ("tuning_variables", {"OMP_X": "1"})],
)
def test_the_fingerprint_follows_machine_and_software(two_ccx, key, value):
    one = describe((0, 1), two_ccx)
    assert fingerprint(one) == fingerprint(dict(one))
    assert fingerprint({**one, key: value}) != fingerprint(one)
    assert fingerprint({**one, "foreign_load": {"memory": 0.5}}) == fingerprint(one)
