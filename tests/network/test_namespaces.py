"""Training over a network whose rate and delay are set: what `mansard run` says of it. Needs root, Linux and iproute2.

Asserted is what the token bucket enforces, not how fast this machine is: a rate that no message can exceed, a delay that none
can be faster than, and the time of steps that the network dominates, each with room for a busy machine. How near the figures
are in quiet is what `benchmarks/network_namespaces/run.py` measures.
"""

import json
import statistics
import sys
from pathlib import Path

import pytest

from mansard.measure.points.session import exit_code

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "network_namespaces"
sys.path.insert(0, str(FOLDER))
import namespaces  # noqa: E402

NEAR = 0.25  # of a set rate, with other programs beside
PREDICTED = 0.4  # of a step time, likewise
WHY = namespaces.missing()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "a network can be made")
TRAIN = str(FOLDER / "train.py")


@pytest.fixture(scope="module")
def ceilings(tmp_path_factory) -> Path:
    """A machine's ceilings that are far from deciding anything here: what the network does is the question."""
    path = tmp_path_factory.mktemp("machine") / "ceilings.json"
    rows = [
        {"resource": {"area": "compute", "dtype": "f32", "accumulate": "f32", "engine": "matrix"}, "value": 1e11,
         "unit": "FLOP/s", "kind": "measured", "scope": "core", "source": "made up for a test"},
        {"resource": {"area": "memory", "level": "dram", "mix": "copy"}, "value": 1e10, "unit": "B/s",
         "kind": "measured", "scope": "core", "source": "made up for a test"},
    ]  # fmt: skip
    document = {"schema": "ceilings/1", "tool_version": "0", "created": "2026-01-01T00:00:00+00:00", "environment": {},
                "ceilings": rows, "levels": [], "machine": {}, "fits": [], "curves": []}  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def diagnosed(net, folder: Path, ceilings: Path, words: list[str], more: tuple[str, ...] = ()) -> dict:
    out = folder / "run.json"
    mansard = [
        sys.executable,
        "-m",
        "mansard",
        "run",
        "-q",
        "-o",
        str(out),
        "--force",
        "--ceilings",
        str(ceilings),
        *more,
    ]
    others = [[sys.executable, TRAIN, *words]] * (len(net.names) - 1)
    done = namespaces.run_ranks(net, [[*mansard, TRAIN, *words], *others], limit_s=200)
    assert [d.returncode for d in done] == [0] * len(done), done[0].stderr[-2000:]
    return json.loads(out.read_text())


def test_a_slow_link_is_named_with_its_rate(tmp_path, ceilings):
    with namespaces.network(2, 100e6) as net:
        words = ["--how", "all_reduce", "--layers", "1", "--hidden", "512", "--steps", "24"]
        found = diagnosed(net, tmp_path, ceilings, words, ("--network-rate", "100 Mbit/s"))
    assert found["verdict"]["bound"] == "network"
    assert found["verdict"]["link"] == "network"
    # of the wire's rate a frame of 9014 B leaves 8948 B to a message, and latency takes a little
    assert 0.7 < found["verdict"]["share_of_ceiling"] <= 1.0
    use = found["receipt"]["network"]
    # two weights of 512 x 512 and two biases of 512 float32; of two ranks each sends 2 (2-1)/2 = 1 times S
    assert use["bus_bytes_per_step"] == pytest.approx(2 * 4 * (512 * 512 + 512))
    assert use["calls_per_step"] == pytest.approx(4)
    assert use["dominated_by"] == "bandwidth"
    assert use["fit"]["beta_bytes_per_s"] == pytest.approx(12.5e6, rel=NEAR)
    assert use["link_rate_from"] == "declared ceiling of the link"
    assert any(n["code"] == "network" and "bandwidth-dominated" in n["text"] for n in found["findings"])


def test_a_long_link_is_latency_and_not_bandwidth(tmp_path, ceilings):
    with namespaces.network(2, 1e9, 5e-3) as net:
        found = diagnosed(net, tmp_path, ceilings, ["--how", "all_reduce", "--hidden", "64", "--steps", "30"])
    assert found["verdict"]["bound"] == "network"
    use = found["receipt"]["network"]
    assert use["dominated_by"] == "latency"
    # reduce and hand back: two messages one after the other, 5 ms each at least
    assert use["fit"]["alpha_s"] > 10e-3
    # 10 times the rate saves less than a twentieth of the step
    assert use["step_at_rates"][-1]["step_s"] > 0.95 * use["step_s"]


def test_ddp_and_the_step_at_another_rate(tmp_path, ceilings):
    words = ["--how", "ddp", "--layers", "1", "--hidden", "640", "--steps"]
    with namespaces.network(3, 300e6) as net:
        found = diagnosed(net, tmp_path, ceilings, [*words, "24"], ("--network-rate", "300 Mbit/s"))
        net.set_rate(100e6)
        times = tmp_path / "times.json"
        done = namespaces.run_ranks(net, [[sys.executable, TRAIN, *words, "8", "--times", str(times)]] * 3, limit_s=100)
    assert [d.returncode for d in done] == [0, 0, 0], done[0].stderr[-2000:]
    assert found["verdict"]["bound"] == "network"
    use = found["receipt"]["network"]
    # 300 to 100 Mbit/s: every byte takes three times as long, latency and computation stay
    stays = use["step_s"] - use["bus_bytes_per_step"] / use["link_bytes_per_s"]
    predicted = stays + use["bus_bytes_per_step"] / 12.5e6
    assert predicted == pytest.approx(statistics.median(json.loads(times.read_text())[2:]), rel=PREDICTED)


def test_measure_over_the_network_finds_rate_and_the_pairs(tmp_path, monkeypatch):
    config = tmp_path / "c.yaml"
    config.write_text(
        "benchmarks:\n"
        "  - {name: all_reduce, impl: torch, dtype: float32, sweep: {matrix_dim: [16, 128, 256]}}\n"
        "  - {name: device_to_device, impl: torch, dtype: float32, data_size_mib: 1}\n"
    )
    out = tmp_path / "out"
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with namespaces.network(2, 100e6) as net:
        words = [sys.executable, "-m", "mansard", "measure", str(config), "--suite", "quick", "-o", str(out)]
        done = namespaces.run_ranks(net, [words, words], limit_s=200)
    elements = json.loads((out / "detailed.json").read_text())
    assert {e["state"] for e in elements} == {"done"}
    # 3 where a busy machine made a point implausible
    assert [d.returncode for d in done] == [exit_code(elements)] * 2, done[0].stderr[-2000:]
    (pairs,) = [e for e in elements if e["metadata"]["benchmark_name"] == "device_to_device"]
    assert pairs["metrics"]["link"] == "network"
    # 1 MiB at 12.5 MB/s: 84 ms
    assert [row["bytes_per_s"] for row in pairs["audit"]["benchmark"]["matrix"]] == pytest.approx(
        [12.5e6] * 2, rel=NEAR
    )
    large = [e for e in elements if e["metadata"]["params"].get("matrix_dim") == 256]
    assert large[0]["metrics"]["busbw_bytes_per_s"] == pytest.approx(12.5e6, rel=NEAR)
    assert "all_reduce, 2 ranks" in done[0].stdout
    assert done[1].stdout == ""
