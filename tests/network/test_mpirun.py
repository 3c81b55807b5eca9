"""Under a real mpirun: each rank finds its place, and `mansard measure` makes one result. Skipped where MPI is not installed."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from mansard.measure.points.session import exit_code

#: Of Open MPI and MPICH, by what they call it in Debian, and the plain name.
STARTERS = ("mpirun.openmpi", "mpirun.mpich", "mpirun")
OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVERSUBSCRIBE = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


@pytest.fixture(params=STARTERS)
def start(request, tmp_path):
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    env |= {**OPEN_MPI_AS_ROOT, **OVERSUBSCRIBE, "MANSARD_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, "-np", "2", sys.executable, *words], env=env, capture_output=True, text=True, timeout=250,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def test_each_rank_finds_its_place(start):
    code = (
        "from mansard.measure.launch import detect_launch as d; x = d(); print(x.launcher, x.rank, x.world, x.one_host)"
    )
    done = start("-c", code)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"(openmpi|mpich) (\d) (\d) (\w+)", done.stdout)
    assert sorted(words[1:] for words in said) == [("0", "2", "True"), ("1", "2", "True")]
    assert len({words[0] for words in said}) == 1


@pytest.mark.live
def test_two_ranks_make_one_result(start, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "out"
    point = ["--run", "all_reduce", "--impl", "torch", "--dtype", "float32", "--suite", "quick", "--matrix-dim", "16"]
    done = start("-m", "mansard", "measure", *point, "-o", str(out))
    (element,) = json.loads((out / "detailed.json").read_text())
    assert element["state"] == "done"
    # Where load made the point implausible all ranks end with 3, and mpirun with what it makes of that.
    assert (done.returncode == 0) == (exit_code([element]) == 0), done.stderr[-2000:]
    assert element["audit"]["benchmark"]["participants"] == 2
    assert len(re.findall("Ranks, time over the median rank", done.stdout)) == 1
