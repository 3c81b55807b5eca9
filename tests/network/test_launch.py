"""Launchers by the environment variables that each of them documents."""

import pytest

from mansard.core.errors import UsageError
from mansard.measure.launch import Launch, detect_launch, first_host, host_port

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "70001", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_JOB_NODELIST": "gpu[007-008]",
}  # fmt: skip
OPENMPI4 = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}  # fmt: skip
OPENMPI5 = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-node1-4321@1",
}  # fmt: skip
MPICH = {
    "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "8", "HYDI_CONTROL_FD": "7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node1",
}  # fmt: skip
JAX = {"JAX_COORDINATOR_ADDRESS": "10.0.0.2:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
TPU = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "t1k-w-0,t1k-w-1,t1k-w-2,t1k-w-3"}


#: Worker 1 of slice 1, of two slices of two hosts each, as GKE's JobSet leaves it.
TWO_SLICES = {
    "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "s1-0.s,s1-1.s", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "s0-0.s:8080", "TPU_ACCELERATOR_TYPE": "v5p-16",
}  # fmt: skip
SAGEMAKER = {
    "SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "0", "SM_NETWORK_INTERFACE_NAME": "eth0",
    "TRAINING_JOB_NAME": "probe-2026-11-30",
}  # fmt: skip
#: What a worker of Ray Train has besides its own RAY_ variables: torchrun's names.
RAY_TRAIN = {
    "RAY_JOB_ID": "01000000", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "41233",
}  # fmt: skip


def detected(env, **flags) -> Launch:
    found = detect_launch(environ=env, **flags)
    assert found is not None
    return found


def test_torchrun():
    found = detected(TORCHRUN)
    assert (found.launcher, found.rank, found.world) == ("torchrun", 3, 4)
    assert (found.local_rank, found.local_world, found.one_host) == (1, 2, False)
    # the agent of torchrun holds 29500 itself
    assert (found.host, found.port) == ("node1", 29501)


def test_slurm():
    found = detected(SLURM)
    assert (found.launcher, found.rank, found.world, found.local_rank, found.local_world) == ("slurm", 5, 8, 1, 4)
    # 70001 mod 4096 = 70001 - 17 x 4096 = 369; 65535 - 4096 + 1 + 369 = 61809
    assert (found.host, found.port) == ("gpu007", 61809)
    assert found.job == "70001.0"


def test_the_batch_script_of_slurm_is_one_process():
    assert detect_launch(environ={k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}) is None


def test_open_mpi_4_names_its_head():
    found = detected(OPENMPI4)
    assert (found.launcher, found.rank, found.world, found.one_host) == ("openmpi", 2, 4, False)
    # 1531576320 / 4096 = 373920; mod 4096 = 373920 - 91 x 4096 = 1184; 61440 + 1184 = 62624
    assert (found.host, found.port) == ("10.96.0.1", 62624)


def test_open_mpi_5_on_one_host_needs_no_head_and_on_two_asks_for_it():
    assert detected(OPENMPI5).host == "127.0.0.1"
    with pytest.raises(UsageError, match="where rank 0 is"):
        detect_launch(environ={**OPENMPI5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    with_flag = detected({**OPENMPI5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, coordinator="node1:5000")
    assert (with_flag.rank, with_flag.world, with_flag.host, with_flag.port) == (1, 2, "node1", 5000)


def test_mpich_on_one_host_and_on_two():
    found = detected(MPICH)
    assert (found.launcher, found.rank, found.world, found.local_rank, found.local_world) == ("mpich", 1, 2, 1, 2)
    assert (found.host, found.port, found.one_host) == ("127.0.0.1", 61440, True)
    two = {**MPICH, "MPI_LOCALNRANKS": "1"}
    with pytest.raises(UsageError, match="where rank 0 is"):
        detect_launch(environ=two)
    assert detected(two, coordinator="node1:5000").host == "node1"


def test_jax_and_cloud_tpu():
    found = detected(JAX)
    assert (found.launcher, found.rank, found.world, found.host, found.port) == ("jax", 1, 2, "10.0.0.2", 1235)
    found = detected(TPU)
    assert (found.launcher, found.rank, found.world, found.host) == ("jax", 2, 4, "t1k-w-0")


def test_slices_of_cloud_tpu_count_on():
    found = detected(TWO_SLICES)
    # 2 hosts a slice: worker 1 of slice 1 is 1 + 2 x 1 = 3 of 4; rank 0 is the coordinator, at a port of ours
    assert (found.rank, found.world, found.host, found.port) == (3, 4, "s0-0.s", 61440)
    assert detected({**TWO_SLICES, "MEGASCALE_SLICE_ID": "0"}).rank == 1
    # one host a slice: the slices alone make a job
    one = {**TWO_SLICES, "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "s1-0.s"}
    assert (detected(one).rank, detected(one).world) == (1, 2)
    addresses = {"TPU_WORKER_ID": "1", "TPU_PROCESS_ADDRESSES": "t-0:8471,t-1:8471"}
    assert (detected(addresses).rank, detected(addresses).world, detected(addresses).host) == (1, 2, "t-0")
    with pytest.raises(UsageError, match="MEGASCALE_SLICE_ID"):
        detect_launch(environ={k: v for k, v in TWO_SLICES.items() if k != "MEGASCALE_SLICE_ID"})


def test_sagemaker_and_what_it_starts():
    found = detected(SAGEMAKER)
    assert (found.launcher, found.rank, found.world, found.host, found.port) == ("sagemaker", 1, 2, "algo-1", 61440)
    assert found.job == "probe-2026-11-30"
    assert detected({**SAGEMAKER, **TORCHRUN}).launcher == "torchrun"
    assert detected({**SAGEMAKER, **OPENMPI4}).launcher == "openmpi"
    assert detect_launch(environ={**SAGEMAKER, "SM_HOSTS": '["algo-2"]'}) is None
    for hosts in ("algo-1,algo-2", '["algo-1"]', "7"):
        with pytest.raises(UsageError, match="SM_HOSTS"):
            detect_launch(environ={**SAGEMAKER, "SM_HOSTS": hosts})


def test_ray_train_names_its_ranks_as_torchrun_does():
    found = detected(RAY_TRAIN)
    assert (found.launcher, found.rank, found.world, found.host, found.port) == ("torchrun", 1, 2, "10.0.0.5", 41234)


def test_pmix_alone_does_not_say_how_many():
    alone = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prte-node1-77@1"}
    with pytest.raises(UsageError, match="PMIX_RANK"):
        detect_launch(environ=alone)
    assert detected({**alone, **OPENMPI5}).launcher == "openmpi"
    assert detected({**alone, **SLURM}).launcher == "slurm"
    assert detected(alone, coordinator="h:1", rank=1, world=2).launcher == "flags"


def test_order_flags_then_torchrun_then_slurm_then_open_mpi_then_mpich_then_jax():
    together = {**JAX, **MPICH, **OPENMPI4, **SLURM, **TORCHRUN}
    assert detected(together, coordinator="h:1", rank=0, world=2).launcher == "flags"
    assert detected(together).launcher == "torchrun"
    assert detected({**JAX, **MPICH, **OPENMPI4, **SLURM}).launcher == "slurm"
    assert detected({**JAX, **MPICH, **OPENMPI4}).launcher == "openmpi"
    assert detected({**JAX, **MPICH}).launcher == "mpich"


@pytest.mark.parametrize("env", [{}, {"WORLD_SIZE": "4"}, {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}])
def test_on_its_own(env):
    assert detect_launch(environ=env) is None


def test_a_world_of_one_is_no_job():
    assert detect_launch(environ={**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    "flags",
    [{"rank": 0}, {"world": 2}, {"coordinator": "h:1"}, {"rank": 0, "world": 2}, {"rank": 2, "world": 2, "coordinator": "h:1"}],
)  # fmt: skip
def test_flags_that_do_not_fit_together_are_refused(flags):
    with pytest.raises(UsageError):
        detect_launch(environ={}, **flags)


def test_damaged_environments_are_refused_by_name():
    with pytest.raises(UsageError, match="WORLD_SIZE is 'four'"):
        detect_launch(environ={**TORCHRUN, "WORLD_SIZE": "four"})
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        detect_launch(environ={"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="rank 9 is not one of 4"):
        detect_launch(environ={**TORCHRUN, "RANK": "9"})


def test_node_lists_and_addresses():
    assert [first_host(x) for x in ("n1", "n1,n2", "n[1-3]", "n[07,09-12],m1", "a-[02]-b")] == [
        "n1", "n1", "n1", "n07", "a-02-b",
    ]  # fmt: skip
    assert host_port("[::1]:80") == ("::1", 80)
    for wrong in ("host", "host:", ":80", "host:0", "host:70000", "host:x"):
        with pytest.raises(UsageError):
            host_port(wrong)
