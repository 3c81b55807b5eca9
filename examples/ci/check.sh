#!/bin/sh
# A scheduled check for cron, on a machine that has the program and a store:
#   17 3 * * *  cd /srv/project && flock -n /run/lock/mansard examples/ci/check.sh bench/suite.yaml examples/ci/rules.yaml main
# Mails (cron does) what failed or could not be decided, and what passed without joining the baseline; is silent otherwise.
# Leave out --rules below for the gate that nothing is slower than the baseline, as mansard compare says it.
# The baseline is started once, by hand: mansard baseline add main DETAILED_JSON
set -eu
config=$1 rules=$2 baseline=$3
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mansard measure "$config" --output "$out" --force >"$out/log" 2>&1 || [ $? -eq 3 ] || { cat "$out/log"; exit 4; }
code=0
mansard check "$out/detailed.json" --rules "$rules" --baseline "$baseline" >"$out/check" 2>&1 || code=$?
if [ "$code" -eq 0 ]; then
  mansard baseline add "$baseline" "$out/detailed.json" >"$out/log" 2>&1 || { code=$?; cat "$out/log"; }
  case $code in 1 | 3) code=0 ;; esac # refused, while the rules have passed
else
  cat "$out/check"
fi
exit "$code"
