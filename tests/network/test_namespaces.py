"""Training over a network whose rate and delay are set: what `mansard run` says of it. Needs root, Linux and iproute2.

Asserted is what the token bucket enforces, not how fast this machine is: a rate that no message can exceed, a delay that none
can be faster than, and the time of steps that the network dominates, each with room for a busy machine. How near the figures
are in quiet is what `benchmarks/network_namespaces/run.py` measures.
"""

import importlib.util
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

SPEC = importlib.util.spec_from_file_location("namespaces_run", FOLDER / "run.py")
assert SPEC is not None
assert SPEC.loader is not None
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)

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
    out = folder / "run-0.json"
    mansard = [
        sys.executable,
        "-m",
        "mansard",
        "run",
        "-q",
        "-o",
        str(folder / "run-{rank}.json"),
        "--force",
        "--ceilings",
        str(ceilings),
        *more,
    ]
    others = [[sys.executable, TRAIN, *words]] * (len(net.names) - 1)
    done = namespaces.run_ranks(net, [[*mansard, TRAIN, *words], *others], limit_s=200)
    assert [d.returncode for d in done] == [0] * len(done), done[0].stderr[-2000:]
    return json.loads(out.read_text())


#: Set rate [bit/s], width of the two matrices, steps: a second or two of training each.
AT_RATES = ((0.1e9, 640, 10), (0.3e9, 640, 16), (1e9, 1024, 20))
CALLS = 4  # two weights and two biases, each an all-reduce of its own
BURST = 1.25  # of the rate: a bucket that rested lets 1.5 ms of it pass at once, in messages of 13 ms at the least


def bus_bytes(width: int) -> int:
    """Two weights and two biases of float32; of two ranks each sends 2 (2 - 1) / 2 = 1 times S."""
    return 2 * 4 * (width * width + width)


@pytest.mark.parametrize("delay", [0.0, 5e-3], ids=["0 ms", "5 ms"])
def test_training_at_three_rates(tmp_path, ceilings, delay):
    uses = {}
    with namespaces.network(2, AT_RATES[0][0], delay) as net:
        for rate, width, steps in AT_RATES:
            net.set_rate(rate)
            words = ["--how", "all_reduce", "--layers", "1", "--batch", "8"]
            words += ["--hidden", str(width), "--steps", str(steps)]
            found = diagnosed(net, tmp_path, ceilings, words, ("--network-rate", f"{rate / 1e6:.0f} Mbit/s"))
            use = uses[rate] = found["receipt"]["network"]
            # An exchange takes ten times as long as what the step computes, whatever else runs here.
            assert (found["verdict"]["bound"], found["verdict"]["link"]) == ("network", "network")
            assert 0.0 < found["verdict"]["share_of_ceiling"] <= BURST
            assert any(n["code"] == "network" and "-dominated" in n["text"] for n in found["findings"])
            assert use["link_rate_from"] == "declared ceiling of the link"
            assert use["bus_bytes_per_step"] == pytest.approx(bus_bytes(width))
            assert use["calls_per_step"] == pytest.approx(CALLS)
            # What the bucket and the relay enforce: no byte goes faster, and each exchange is two messages, one after the other.
            on_wire = bus_bytes(width) / (rate / 8)
            assert use["busbw_bytes_per_s"] <= BURST * rate / 8
            assert use["step_s"] >= on_wire / BURST + CALLS * 2 * delay
            if delay:
                assert use["fit"]["alpha_s"] >= 2 * delay
            if rate == 0.1e9:  # 262 ms of bytes against 80 ms of delay at the most: far from half and half
                assert use["dominated_by"] == "bandwidth"
                assert use["fit"]["beta_bytes_per_s"] == pytest.approx(rate / 8, rel=NEAR)
    # The step at the other rate: what is not the wire stays. What other programs take differs from run to run.
    room = PREDICTED * uses[0.1e9]["step_s"]
    for one, other in ((0.1e9, 0.3e9), (0.3e9, 0.1e9)):
        assert bench.predicted(uses[one], other / 8) == pytest.approx(uses[other]["step_s"], abs=room)


def test_short_messages_over_a_long_link_are_latency_and_not_bandwidth(tmp_path, ceilings):
    with namespaces.network(2, 1e9, 5e-3) as net:
        found = diagnosed(net, tmp_path, ceilings, ["--how", "all_reduce", "--hidden", "64", "--steps", "16"])
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
