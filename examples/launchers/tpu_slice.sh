#!/usr/bin/env bash
# The hosts of a Cloud TPU slice: examples/launchers/tpu_slice.sh NAME ZONE
# Every host runs the same command; TPU_WORKER_ID and TPU_WORKER_HOSTNAMES say which it is.
# Between the hosts it is the data-centre network that is measured, by gloo. The links between the chips (ICI) of one host
# are measured by JAX without this: python3 -m mansard measure --run all_reduce --impl jax
set -euo pipefail
name="$1"
zone="$2"
gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker all --command \
  'python3 -m mansard measure --output "$HOME/mansard-network"'
