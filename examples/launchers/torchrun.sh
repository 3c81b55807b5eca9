#!/usr/bin/env bash
# The network between processes by torchrun. On one host as it stands:
#     examples/launchers/torchrun.sh 2 results
# On several hosts start it on each with NNODES, NODE_RANK and MASTER_ADDR (and MASTER_PORT) set.
# Ports: MASTER_PORT is torchrun's; Mansard uses the next free one behind it.
# What follows the two words goes to mansard measure; `--` keeps torchrun from taking --run for one of its own.
set -euo pipefail
per_node="${1:-2}"
out="${2:-results}"
shift $(($# < 2 ? $# : 2))
exec python3 -m torch.distributed.run \
  --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "$per_node" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
  -m -- mansard measure --output "$out" "$@"
