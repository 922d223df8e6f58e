#!/bin/bash
# Runs device-tests.sh, as the owner of a device would, and checks what happens with a low limit of
# locked memory. For the machine of softroce.sh.
set -eu
cd "$(dirname "$0")/.."
. scripts/parts.sh

# Targets that the benchmark misses are no failure here: in an emulated machine the device
# itself writes at most half as fast as TCP (docs/providers.md).
status=0
LIMIT=30m ./scripts/device-tests.sh || status=$?
part silence env RDMANET_TEST_HOST=10.9.0.1 bin/tests/ofifabric.test -test.timeout 1m -test.run UnreachablePeer
parts_passed || status=$?
echo "== the report"
cat bin/device-report.txt

# If the limit of locked memory is too low, the error must name it, and say how to raise it.
echo "== locked memory"
chmod a+rw /dev/infiniband/*
said=$(setpriv --reuid 65534 --clear-groups bash -c \
	"ulimit -l 64; exec bin/tests/bench -providers 'verbs;ofi_rxm' -host 10.9.0.1 -modes lat -sizes 64 -rounds 1 -time 50ms" 2>&1 || true)
grep -q 'may lock 64 KiB of memory: raise that with ulimit -l' <<<"$said" || {
	echo "the error does not say how to raise the limit: $said"
	exit 1
}
exit $status
