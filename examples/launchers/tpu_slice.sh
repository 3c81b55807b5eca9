#!/usr/bin/env bash
# The hosts of a Cloud TPU slice: examples/launchers/tpu_slice.sh NAME ZONE
# Every host runs the same command; TPU_WORKER_ID and TPU_WORKER_HOSTNAMES say which it is. GKE sets them; on TPU VMs they are
# asked of the metadata server, whose list of workers is either of names or of name:id:address.
# Between the hosts it is the data-centre network that is measured, by gloo. The links between the chips (ICI) of one host
# are measured by JAX without this: python3 -m mansard measure --run all_reduce --impl jax
set -euo pipefail
name="$1"
zone="$2"
# The variables are those of the hosts, not of this shell.
# shellcheck disable=SC2016
on_each='
ask() { curl -sf -H "Metadata-Flavor: Google" "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"; }
export TPU_WORKER_ID="${TPU_WORKER_ID:-$(ask agent-worker-number)}"
export TPU_WORKER_HOSTNAMES="${TPU_WORKER_HOSTNAMES:-$(ask worker-network-endpoints |
  tr "," "\n" | awk -F: "{print NF == 3 ? \$3 : \$1}" | paste -sd, -)}"
python3 -m mansard measure --output "$HOME/mansard-network"'
gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker all --command "$on_each"
