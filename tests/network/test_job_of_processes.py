"""`mansard measure` over several processes: one result file, silent ranks, and what happens when one is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from mansard.measure.points.session import exit_code

torch = pytest.importorskip("torch")

POINT = ["--run", "all_reduce", "--impl", "torch", "--dtype", "float32", "--suite", "quick", "--matrix-dim"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def environment(tmp_path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {**env, "MANSARD_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def start(tmp_path, rank: int, world: int, port: int, more: list[str]) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "mansard", "measure", *more, "--coordinator", f"127.0.0.1:{port}",
             "--rank", str(rank), "--world", str(world)]  # fmt: skip
    return subprocess.Popen(
        words,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def test_three_processes_make_one_result_and_only_rank_0_speaks(tmp_path):
    out, port = tmp_path / "out", free_port()
    ranks = [start(tmp_path, r, 3, port, [*POINT, "16", "-o", str(out)]) for r in range(3)]
    told = [child.communicate(timeout=200) for child in ranks]
    (element,) = json.loads((out / "detailed.json").read_text())
    assert element["state"] == "done"
    assert [child.returncode for child in ranks] == [exit_code([element])] * 3, told  # 3 where load made it implausible
    assert told[0][0].startswith("point")
    assert "Ranks, time over the median rank" in told[0][0]
    assert [text for rank in (1, 2) for text in told[rank] if text.strip() and "Warning" not in text] == []
    facts = element["audit"]["benchmark"]
    assert (facts["participants"], len(facts["rank_s"])) == (3, 3)
    assert element["metrics"]["link"] == "loopback"
    # S = 16 x 8 x 128 x 4 B = 65536 B; busbw is 2 (3 - 1) / 3 = 4/3 of algbw
    assert element["metrics"]["size_bytes"] == 65536
    assert element["metrics"]["busbw_bytes_per_s"] / element["metrics"]["algbw_bytes_per_s"] == pytest.approx(4 / 3)


def test_torchrun_with_implementations_that_have_no_link_here(tmp_path):
    out = tmp_path / "out"
    config = tmp_path / "c.yaml"
    config.write_text(
        "benchmarks:\n"
        "  - {name: all_reduce, impl: [torch, jax], dtype: float32, matrix_dim: 8}\n"
        "  - {name: all_reduce, impl: torch, dtype: float32, matrix_dim: 8, devices: 3}\n"
        "  - {name: device_to_device, impl: torch, dtype: float32, data_size_mib: 0.25}\n"
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
             "-m", "mansard", "measure", str(config), "--suite", "quick", "-o", str(out)]  # fmt: skip
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, timeout=250, check=False)
    elements = json.loads((out / "detailed.json").read_text())
    assert exit_code(elements) in (0, 3), done.stderr[-2000:]
    assert (done.returncode == 0) == (exit_code(elements) == 0), done.stderr[-2000:]
    states = {
        (e["metadata"]["benchmark_name"], e["metadata"]["impl"], e["metadata"]["params"].get("devices")): e
        for e in elements
    }
    assert states["all_reduce", "torch", 0]["state"] == "done"
    jax = states["all_reduce", "jax", 0]
    assert jax["state"] == "waived"
    assert "ICI and DCN" in jax["reason"]
    assert "3 ranks are needed; the job has 2" in states["all_reduce", "torch", 3]["reason"]
    matrix = states["device_to_device", "torch", 0]["audit"]["benchmark"]["matrix"]
    assert [(row["source"], row["target"]) for row in matrix] == [(0, 1), (1, 0)]
    assert "Links, messages of" in done.stdout


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_ends_the_run_by_name_with_what_was_kept(tmp_path, how):
    out, port = tmp_path / "out", free_port()
    config = tmp_path / "c.yaml"
    config.write_text("benchmarks:\n  - {name: all_reduce, impl: torch, dtype: float32, sweep: {matrix_dim: {start: 8, end: 4096, multiplier: 2}}}\n")  # fmt: skip
    ranks = [start(tmp_path, r, 2, port, [str(config), "--suite", "standard", "-o", str(out)]) for r in range(2)]
    try:
        detailed = out / "detailed.json"
        end = time.monotonic() + 120
        while not (children := _children(ranks[1].pid)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in (*children, ranks[1].pid):
            os.kill(pid, how)
        text = ranks[0].communicate(timeout=150)
    finally:
        for pid in (*_children(ranks[1].pid), ranks[1].pid):
            with_kill(pid)
        for child in ranks:
            child.kill()
            child.wait()
    assert ranks[0].returncode == 1, text
    assert "rank 1 of 2" in text[1]
    assert "is lost" in text[1]
    assert "kept" in text[1]
    elements = json.loads(detailed.read_text())
    assert len(elements) == 10  # 8, 16, ... 4096: every point has an element
    failed = [e for e in elements if e["state"] == "failed"]
    assert failed
    assert all("lost" in e["reason"] or "rank" in e["reason"] for e in failed)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            return [int(x) for x in f.read().split()]
    except OSError:
        return []


def with_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
