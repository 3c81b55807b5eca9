"""The path of CUDA devices without one: which backend, which device and which meeting point each rank of a job would take."""

import json
import subprocess

import pytest

from mansard.measure.launch import detect_launch
from mansard.measure.links import follow

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

#: Rank 5 of 8 on the second host of four devices each, as torchrun leaves it.
SECOND_HOST = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip


@pytest.fixture
def joined(monkeypatch):
    """Record what would be told to torch.distributed and to CUDA."""
    seen = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **told: seen.update(backend=backend, **told))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.update(device=str(device)))
    return seen


def test_a_rank_takes_nccl_and_the_device_of_its_place_on_the_host(joined, monkeypatch):
    from mansard.measure.links.rank_worker import Rank

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    store = object()
    assert Rank(rank=5, ranks=8, store=store, device_type="cuda", device_index=1).join() == "nccl"
    assert (joined["backend"], joined["device"], joined["rank"], joined["world_size"]) == ("nccl", "cuda:1", 5, 8)
    assert joined["store"] is store


def test_on_one_host_the_device_is_the_rank(joined):
    from mansard.measure.links.rank_worker import Rank

    Rank(rank=3, ranks=4, store=object(), device_type="cuda").join()
    assert joined["device"] == "cuda:3"


def test_the_process_of_a_remote_rank_is_told_its_local_device_and_where_rank_0_is(monkeypatch):
    launch = detect_launch(environ=SECOND_HOST)
    told = []

    class Started:
        def __init__(self, words, **_options):
            told.append(json.loads(words[-1]))

    monkeypatch.setattr(subprocess, "Popen", Started)
    _, errors = follow._started({"port": 4000, "store_port": 4001, "device_type": "cuda"}, launch)
    errors.close()
    assert told == [{"rank": 5, "ranks": 8, "store": "tcp://node1:4001", "device_type": "cuda", "channel": ["node1", 4000],
                     "device_index": 1}]  # fmt: skip


def test_cpus_take_gloo(joined):
    from mansard.measure.links.rank_worker import Rank

    assert Rank(rank=0, ranks=2, store=object(), device_type="cpu").join() == "gloo"
    assert "device" not in joined
