#!/bin/sh
# Fuzzes one target: scripts/fuzz.sh DIRECTORY TARGET FLAG...
#
# Up to Go 1.26 the end of -fuzztime can be reported as a failure of the target (go.dev/issue/75804).
# Such a report can be told from a real failure: it names no line and writes no failing input.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
dir=$1 target=$2
shift 2

echo "$dir $target"
{ go test -run '^$' -fuzz "^$target\$" "$@" "$dir" || echo "fuzzing has failed"; } 2>&1 | tee "$log"
grep -q '^fuzzing has failed$' "$log" || exit 0
if grep -qE 'Failing input|_test\.go:|^panic' "$log" || ! grep -A 1 -e '^--- FAIL' "$log" | grep -qx '    context deadline exceeded'; then
	exit 1
fi
echo "its time has ended: no failure"
