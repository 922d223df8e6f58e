#!/bin/bash
# Runs the tests of providers over this machine's RDMA device, and the benchmark, in ten
# minutes, and writes a report to bin/device-report.txt that can be sent in. The programs come
# from bin/tests (make test-programs): Go is not needed. Optional, in the environment:
#
#   PROVIDER  a provider; by default the first of cxi, efa and verbs;ofi_rxm that is there
#   DEVICE    its domain, such as mlx5_0
#   HOST      an address of the device's network interface
set -euo pipefail
cd "$(dirname "$0")/.."

bench=$PWD/bin/tests/bench fabricnet=$PWD/bin/tests/fabricnet
report=$PWD/bin/device-report.txt log=$PWD/bin/device-tests.log
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for program in "$bench" "$fabricnet"; do
	[ -x "$program" ] || {
		echo "There is no $program: make test-programs, here or on a machine like this." >&2
		exit 1
	}
done

wanted=${PROVIDER:-cxi,efa,verbs;ofi_rxm}
[ -z "${DEVICE:-}" ] || wanted="${wanted//,//$DEVICE,}/$DEVICE"
"$fabricnet" info --providers "$wanted" ${HOST:+--local "$HOST"} >"$work/info"

# The first entry that would be chosen; one whose address other hosts can reach comes first.
chosen=$(awk '
	/^for conns at/ { host = $4; sub(/:$/, "", host); near = host ~ /^(127\.|::1$)/ }
	$1 ~ /^[0-9]+$/ && near && !local { local = host " " $2 " " $3 }
	$1 ~ /^[0-9]+$/ && !near && !remote { remote = host " " $2 " " $3 }
	END { print remote ? remote : local }' "$work/info")
[ -n "$chosen" ] || {
	echo "No RDMA device that libfabric can use with $wanted${HOST:+ at $HOST}. bin/tests/fabricnet info lists what is there and why it is not chosen, bin/tests/fabricnet doctor says what to do." >&2
	exit 1
}
read -r host provider domain <<<"$chosen"
echo "testing $provider, device $domain, at $host"

"$fabricnet" doctor >"$work/doctor" || true # its output says what has failed
export RDMANET_TEST_PROVIDERS=$provider RDMANET_TEST_HOST=$host RESULTS=$work/results
[ -z "${DEVICE:-}" ] || RDMANET_TEST_PROVIDERS=$provider/$domain
status=0
./scripts/provider-tests.sh 2>&1 | tee "$log" || status=$?

# rsockets are part of the comparison if there is rstream, of rdmacm-utils.
echo "== benchmark"
measure=(-demo -providers "$RDMANET_TEST_PROVIDERS")
[ "$RDMANET_TEST_PROVIDERS" != 'verbs;ofi_rxm' ] || ! command -v rstream >/dev/null || measure=(-verbs)
"$bench" "${measure[@]}" -host "$host" | tee "$work/bench" || status=$?

# anonymous removes everything that identifies the machine or its network.
anonymous() {
	local name
	name=$(uname -n | sed 's/[^[:alnum:]-]/\\&/g') # a machine without a name is called (none)
	sed -E "s/\b$name\b/HOSTNAME/g; s/\b([0-9]{1,3}\.){3}[0-9]{1,3}\b/ADDRESS/g
		s/([0-9a-fA-F]{0,4}:){3,}[0-9a-fA-F]{0,4}|[0-9a-fA-F]{1,4}::[0-9a-fA-F]*/ADDRESS/g; s/0x[0-9a-fA-F]{16}/NUMBER/g"
}
{
	echo "fabricnet $(cat bin/tests/commit), $(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -srm), $(date -u +%Y-%m-%d)"
	echo "$provider, device $domain"
	echo
	awk -v provider="$provider" -v domain="$domain" '/^for conns at/ { exit } NR <= 3 || $1 == provider && $2 == domain' "$work/info"
	echo
	cat "$work/doctor"
	echo
	cat "$work/results"
	grep -E '^ *--- FAIL' "$log" | awk '!seen[$0]++' || true
	echo
	cat "$work/bench"
} | anonymous >"$report"
echo "the report is in $report"
exit $status
