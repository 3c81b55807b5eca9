"""Under a real Slurm of this machine: one node, two tasks, one result. Skipped where Slurm is not installed.

Slurm is set up for one test in a folder of its own, without munge: controller and node daemon on this host. Where Slurm is
unpacked and not installed, MANSARD_SLURM_PLUGINS names its folder of plugins and MANSARD_SLURM_STEPD its slurmstepd.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mansard.measure.points.session import exit_code

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "launchers" / "slurm.sbatch"
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)}"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="the daemons of Slurm need root"),
]
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
{plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 Port={node} CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def slurm(tmp_path):
    """Return the environment of a cluster of this host alone, taken down at the end."""
    folder, host = tmp_path / "slurm", socket.gethostname().partition(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError:
        pytest.skip(f"the name of this host, {host}, is not known here")
    control, node = free_ports(2)
    conf = folder / "slurm.conf"
    for name in ("state", host):
        (folder / name).mkdir(parents=True)
    plugins = os.environ.get("MANSARD_SLURM_PLUGINS", "")
    text = CONF.format(host=host, control=control, node=node, folder=folder,
                       plugins=f"PluginDir={plugins}" if plugins else "")  # fmt: skip
    conf.write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") and k not in ("RANK", "WORLD_SIZE")}
    env |= {"SLURM_CONF": str(conf), "MANSARD_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    stepd = os.environ.get("MANSARD_SLURM_STEPD", "")
    more = ["-d", stepd] if stepd else []
    words = [["slurmctld", "-D"], ["slurmd", "-D", "-N", host, *more]]
    with (folder / "said").open("w") as said:
        daemons = [
            subprocess.Popen(w, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder) for w in words
        ]
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            seen = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=env, capture_output=True, text=True, check=False)
            if seen.stdout.split() == ["idle", "1"]:
                break
            if any(d.poll() is not None for d in daemons):
                pytest.skip(f"this Slurm does not start here: {(folder / 'said').read_text()[-300:]}")
            time.sleep(0.2)
        else:
            pytest.skip(f"this Slurm does not come up here: {(folder / 'said').read_text()[-300:]}")
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=30)


def test_each_task_finds_its_place(slurm):
    code = "from mansard.measure.launch import detect_launch as d; x = d(); print(x.launcher, x.rank, x.world, x.one_host, x.host)"
    words = ["srun", "-n", "2", sys.executable, "-c", code]
    done = subprocess.run(words, env=slurm, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (first, second) = sorted(done.stdout.splitlines())
    assert first.rsplit(" ", 1)[0] == "slurm 0 2 True"
    assert second.rsplit(" ", 1)[0] == "slurm 1 2 True"
    assert first.rsplit(" ", 1)[1] == second.rsplit(" ", 1)[1]  # the first host of the step


@pytest.mark.live
def test_the_example_with_a_point_makes_one_result(slurm, tmp_path):
    pytest.importorskip("torch")
    text = EXAMPLE.read_text(encoding="utf-8")
    point = "--run all_reduce --impl torch --dtype float32 --suite quick --matrix-dim 16"
    script = tmp_path / "job.sbatch"
    script.write_text(text.replace("-m mansard measure", f"-m mansard measure {point}"))
    env = {**slurm, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{slurm['PATH']}"}
    size = ["--nodes=1", "--ntasks-per-node=2"]
    words = ["sbatch", *size, "--wait", "--parsable", "--output", str(tmp_path / "said"), str(script)]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    said = (tmp_path / "said").read_text()
    (element,) = json.loads((tmp_path / f"results-{done.stdout.strip()}" / "detailed.json").read_text())
    assert element["state"] == "done", said
    assert done.returncode == exit_code([element]), said
    assert element["audit"]["benchmark"]["participants"] == 2
    assert said.count("Ranks, time over the median rank") == 1
