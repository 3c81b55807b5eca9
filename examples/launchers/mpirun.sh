#!/usr/bin/env bash
# The network between processes started by Open MPI, MPICH or Intel MPI (mpirun only starts them; they talk by gloo or NCCL):
#     examples/launchers/mpirun.sh 4 results
# Over several hosts give the first of them in COORDINATOR=host:port where Open MPI 5 or MPICH does not tell it.
set -euo pipefail
ranks="${1:-2}"
out="${2:-results}"
mpirun -np "$ranks" python3 -m mansard measure --output "$out" ${COORDINATOR:+--coordinator "$COORDINATOR"}
