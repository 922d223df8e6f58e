#!/bin/sh
# Prints every fuzz target, one a line: its directory and its name.
set -eu
cd "$(dirname "$0")/.."

grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u | while read -r dir; do
	grep -hoE '^func Fuzz\w+' "$dir"/*_test.go | cut -c6- | sed "s|^|$dir |"
done
