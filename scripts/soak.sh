#!/bin/sh
# The long form of the tests whose outcome depends on timing or chance, for an hour
# or more. Prints what it does, and leaves a summary in docs/soak.txt.
set -eu
cd "$(dirname "$0")/.."

seeds=${SEEDS:-200000}
fuzztime=${FUZZTIME:-10m}
out=docs/soak.txt
log=$(mktemp)
trap 'rm -f "$log"' EXIT

commit=$(git describe --always --dirty --abbrev=12)
cpu=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
{
	echo "commit $commit, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "$cpu, $(nproc) CPUs, $(uname -sr), $(go env GOVERSION), libfabric $(pkg-config --modversion libfabric)"
} >"$out"

# step NAME COMMAND...: runs the command and keeps its verdict and the lines in
# which tests say what they have measured.
step() {
	name=$1
	shift
	echo "== $name: $*"
	begin=$(date +%s)
	verdict=ok
	"$@" >"$log" 2>&1 || verdict=FAILED
	{
		echo
		echo "$name: $verdict in $(($(date +%s) - begin)) s"
		echo "    $*"
		# What a test says comes before its verdict, or after it with -race.
		grep -E '^ *(--- |[a-z_]+_test\.go:[0-9]+: |fuzz: elapsed: .*gathering)' "$log" | grep -v -- '--- PASS: .*(0\.0' |
			sed -E 's/[a-z_]+_test\.go:[0-9]+: //; s/^/    /' || true
	} >>"$out"
	if [ $verdict != ok ]; then
		tail -n 100 "$log"
		failed=1
	fi
}
failed=0

# First, as it wants a quiet machine, and without -race, as it compares rates.
step "conns and processes that are stuck" go test -timeout=0 -v -run 'Stuck|Stalled' ./rdmanet -soak
step "model, $seeds seeds" go test -timeout=0 -run 'TestModel$' ./internal/engine -seeds "$seeds"
step "peers killed, stopped, hostile; memory; shutdown" \
	go test -race -timeout=0 -v -run 'Kill|Frozen|Closed|Leftover|Exit|Close|Memory|Cycles|Hostile|HalfOpen|WriteFirst|TakeTurns|Duplex|Strangers|Rings' ./rdmanet -soak
step "gRPC under load" go test -timeout=0 -v -run ManyCalls ./grpcdialer -soak
step "AddressSanitizer" make asan
grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do
	grep -hoE '^func Fuzz\w+' "$dir"/*_test.go | cut -c6- | while read -r target; do
		echo "$dir $target"
	done
done >"$log.targets"
while read -r dir target; do
	step "fuzz $target" go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$dir"
done <"$log.targets"
rm -f "$log.targets"

cat "$out"
exit $failed
