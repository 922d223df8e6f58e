#!/bin/bash
# Builds versions of libfabric and runs the tests of providers with each.
#
#   scripts/libfabrics.sh SOURCE VERSION...
#
# SOURCE is a git directory of libfabric with its tags; a VERSION is like 1.18.3. What was built
# stays in the cache. All versions are run; the script fails if one of them has failed.
set -euo pipefail

[ $# -ge 2 ] && git --git-dir="$1" rev-parse --git-dir >/dev/null || {
	echo 'Say where from and which: make test-libfabrics SOURCE=a git directory of libfabric'\''s VERSIONS="1.18.3 2.1.0"' >&2
	exit 2
}
source=$1
shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fabricnet
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build VERSION builds libfabric with the providers that every machine can run.
build() {
	local version=$1 prefix=$cache/libfabric-$1 log=$cache/libfabric-$1.log
	[ -d "$prefix" ] && return
	git --git-dir="$source" rev-parse -q --verify "v$version^{commit}" >/dev/null || {
		echo "$source has no tag v$version"
		return 1
	}
	echo "building libfabric $version"
	mkdir -p "$work/$version" "$cache"
	git --git-dir="$source" archive "v$version" | tar -x -C "$work/$version"
	(
		cd "$work/$version" && ./autogen.sh &&
			./configure --prefix="$prefix" --disable-static --enable-only --enable-shm --enable-tcp --enable-rxm --enable-udp --enable-rxd \
				"$([ -d prov/net ] && echo --enable-net || echo --disable-net)" &&
			make -j"$(nproc)" && make install DESTDIR="$work/new"
	) >"$log" 2>&1 || {
		tail -n 20 "$log"
		return 1
	}
	mv "$work/new$prefix" "$prefix" # complete, or not at all
	rm -rf "${work:?}/$version" "$work/new"
}

# mixed VERSION OTHER checks that two processes with different versions do not share memory.
mixed() {
	local verdict=ok
	RDMANET_LIBFABRIC=$(library "$1") RDMANET_TEST_OTHER_LIBFABRIC=$(library "$2") \
		go test -count=1 -tags mixed -run TestMixedLibraries ./internal/systemtest || verdict=FAILED
	echo "mixed      $verdict with $2" >>"$RESULTS"
}

library() { ls "$cache/libfabric-$1"/lib*/libfabric.so.1; }

last=
for version; do
	echo "== libfabric $version"
	export RESULTS=$work/results-$version
	if ! build "$version"; then
		echo "build      FAILED" >"$RESULTS"
	elif ! make --no-print-directory test-providers LIBFABRIC="$cache/libfabric-$version" && [ ! -s "$RESULTS" ]; then
		echo "programs   FAILED" >"$RESULTS"
	fi
	[ ! -d "$cache/libfabric-$version" ] || {
		[ -z "$last" ] || mixed "$version" "$last"
		last=$version
	}
done

echo
for version; do
	sed "s/^/$(printf '%-8s' "$version") /" "$work/results-$version"
done
! grep -q FAILED "$work"/results-* || {
	echo "failed:$(cd "$work" && grep -l FAILED results-* | sed 's/results-/ /' | tr -d '\n')" >&2
	exit 1
}
