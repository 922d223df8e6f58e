#!/bin/sh
# Runs the long form of the tests whose outcome depends on timing or chance, for two
# hours. Prints what it does, and writes a summary to docs/soak.txt. SEEDS, FUZZTIME and
# PART in the environment make it shorter: with PART=4 tests are repeated a quarter
# as often.
set -eu
cd "$(dirname "$0")/.."

seeds=${SEEDS:-200000}
fuzztime=${FUZZTIME:-10m}
part=${PART:-1}
out=docs/soak.txt
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

commit=$(git describe --always --dirty --abbrev=12)
cpu=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
{
	echo "commit $commit, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "$cpu, $(nproc) CPUs, $(uname -sr), $(go env GOVERSION), $(go run ./cmd/fabricnet info --local 127.0.0.1 | sed -n 1p)"
} >"$out"

# step NAME COMMAND... runs the command, and keeps its verdict and the lines with
# what tests have measured.
step() {
	name=$1
	shift
	echo "== $name: $*"
	begin=$(date +%s)
	log=$(mktemp -p "$logs")
	verdict=ok
	"$@" >"$log" 2>&1 || verdict=FAILED
	{
		echo
		echo "$name: $verdict in $(($(date +%s) - begin)) s"
		echo "    $*"
		# A test's log comes before its verdict, or after it with -race.
		grep -E '^ *(--- |[a-z_]+_test\.go:[0-9]+: |fuzz: elapsed: .*gathering)' "$log" | grep -v -- '--- PASS: .*(0\.' |
			sed -E 's/[a-z_]+_test\.go:[0-9]+: //; s/^/    /' || true
		grep -E '^fuzz: elapsed' "$log" | tail -n 1 | sed 's/^/    /' || true
	} >"$log.summary"
	cat "$log.summary" >>"$out"
	if [ $verdict != ok ]; then
		grep -A 8 -e '--- FAIL' "$log" | head -n 50
		tail -n 50 "$log"
		touch "$logs/failed"
	fi
}

fuzz() {
	./scripts/fuzztargets.sh | while read -r dir target; do
		step "fuzz $target" nice ./scripts/fuzz.sh "$dir" "$target" -fuzztime "$fuzztime" -parallel 1
	done
}

packages="./rdmanet ./internal/systemtest"
# These come first, since they need a quiet machine, and run without -race: they compare rates, and
# bound how long one of a thousand conns may stand still, how long a round trip beside large Buffers
# takes, and how long a dial beside strangers or hundreds of processes takes. The race detector's own
# memory grows by some hundred bytes per conn.
alone='Siege|Strangers|Stuck|Stalled|Flat|ManyConns|LargeBuffers|Scale|DialsAtOnce'
step "strangers; hundreds of processes; conns and processes that are stuck; many conns; large Buffers; resident memory" go test -timeout=0 -v -p 1 -run "$alone" $packages -soak -soak.part "$part"
fuzz & # runs at a lower priority than the others
step "model, $seeds seeds" go test -timeout=0 -run 'TestModel$' ./internal/engine -seeds "$seeds"
# These tests wait most of the time.
peers='Kill|Frozen|Closed|Left|Hostile|Liars|Crowd'
step "peers that are killed, stopped or hostile" go test -race -timeout=0 -v -p 1 -run "$peers" $packages -soak -soak.part "$part" &
# A thousand times each, which would take too long with -race; make test runs them with it.
closing='CloseDuring|LeasePending|Exit'
step "conns that close, processes that end" go test -timeout=0 -v -p 1 -run "$closing" $packages -soak -soak.part "$part" &
step "everything else of these packages" go test -race -timeout=0 -v -p 1 -skip "$alone|$peers|$closing" $packages -soak -soak.part "$part" &
wait
step "gRPC under load" go test -timeout=0 -v -run ManyCalls ./grpcdialer -soak
step "AddressSanitizer" make asan

cat "$out"
test ! -e "$logs/failed"
