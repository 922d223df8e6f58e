# shellcheck shell=bash
# For scripts whose work has parts: each runs, whatever became of those before it.
# Sourced; takes the EXIT trap.
#
#   part NAME COMMAND [ARGUMENT...]  prints how it went, and the end of what it said if it failed
#   parts_passed                     fails if one of them has
#
# If RESULTS names a file, a line of each part's name, verdict and seconds is added to it.

logs=$(mktemp -d) # what each part has said, by its name
trap 'rm -rf "$logs"' EXIT
failed=

part() {
	local name=$1 begin=$SECONDS verdict=ok line
	shift
	"$@" >"$logs/$name" 2>&1 </dev/null || verdict=FAILED
	[ $verdict = ok ] || {
		failed="$failed $name"
		tail -n 100 "$logs/$name"
		# With a dump of goroutines, the tests that failed are further up.
		grep -E -A 3 '^ *--- FAIL|^panic: test timed out' "$logs/$name" || true
	}
	line=$(printf '%-10s %-6s %4d s' "$name" $verdict $((SECONDS - begin)))
	echo "$line"
	[ -z "${RESULTS:-}" ] || echo "$line" >>"$RESULTS"
}

parts_passed() {
	[ -z "$failed" ] || {
		echo "failed:$failed" >&2
		return 1
	}
}
