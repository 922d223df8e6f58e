# shellcheck shell=bash
# For scripts whose work has parts: each part runs, whether or not those before it have failed.
# To be sourced; it uses the EXIT trap.
#
#   part NAME COMMAND [ARGUMENT...]  prints the verdict, and the end of the output if it failed
#   parts_passed                     fails if a part has failed
#
# If RESULTS names a file, a line with the name, verdict and seconds of each part is added to it.

logs=$(mktemp -d) # the output of each part, by its name
trap 'rm -rf "$logs"' EXIT
failed=

part() {
	local name=$1 begin=$SECONDS verdict=ok line
	shift
	"$@" >"$logs/$name" 2>&1 </dev/null || verdict=FAILED
	[ $verdict = ok ] || {
		failed="$failed $name"
		tail -n 100 "$logs/$name"
		# If goroutines are dumped, the tests that failed are further up.
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
