#!/usr/bin/env bash
# Checks that what is committed can be released as the version given. A GOPROXY of files is
# made of the commit, in which the nested modules require that version, and the modules are
# used from it with an empty module cache. Prereleases, such as v0.0.0-check, need neither
# a section in CHANGELOG.md nor nested modules that name them. Nothing is tagged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$1
core=$(sed -n 's/^module //p' go.mod)
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT

fail() {
	echo "release-check $version: $*" >&2
	exit 1
}

[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "VERSION must look like v0.1.0"
[ "$(id -u)" = 0 ] || fail "run it as root: it hides libfabric's headers in a mount namespace"

mkdir "$tmp/tree"
git archive HEAD | tar -x -C "$tmp/tree"
export GIT_DIR="$tmp/git" GIT_WORK_TREE="$tmp/tree" GOFLAGS=-mod=mod GOWORK=off
cd "$tmp/tree"
nested=$(find . -mindepth 2 -name go.mod -printf '%P\n' | sed 's#/go.mod$##' | sort)

# Versions and the changelog.
named=$(for m in $nested; do
	sed -nE "s#^(require )?\s*$core(/[a-z/]+)? (v[^ ]+).*#\3#p" "$m/go.mod"
	! grep -H '^replace' "$m/go.mod" >&2 || fail "remove the replace directives: go.work serves development"
done | sort -u)
[ "$(wc -w <<<"$named")" = 1 ] || fail "nested modules must all require one version of $core, not" $named
if [[ $version != *-* ]]; then
	[ "$named" = "$version" ] || fail "have the nested modules require $version, not $named (CONTRIBUTING.md, Releases)"
	grep -qF "## [${version#v}]" CHANGELOG.md || fail "rename [Unreleased] in CHANGELOG.md to [${version#v}]"
fi

# The proxy. The go command puts the top folder's LICENSE into the zip of a nested module
# that has none.
for m in $nested; do
	sed -i -E "s#($core(/[a-z/]+)?) $named#\1 $version#" "$m/go.mod"
done
git init -q
git add -A -f
tree=$(git write-tree)
[ -e LICENSE ] || fail "LICENSE is missing"
publish() { # folder, pathspecs
	local path=$core${1:+/$1} at
	at=$tmp/proxy/$path/@v
	mkdir -p "$at"
	cp "./$1/go.mod" "$at/$version.mod"
	echo "{\"Version\":\"$version\",\"Time\":\"2000-01-01T00:00:00Z\"}" >"$at/$version.info"
	echo "$version" >"$at/list"
	local license=()
	[ -e "./$1/LICENSE" ] || license=(--add-file=LICENSE)
	git archive --format=zip --prefix="$path@$version/" "${license[@]}" -o "$at/$version.zip" "$tree:$1" -- "${@:2}"
}
publish "" . $(printf ':(exclude)%s ' $nested)
for m in $nested; do publish "$m" .; done

# Use, in empty modules.
proxy=$(go env GOPROXY)
export GOPROXY="file://$tmp/proxy,${proxy%,direct}" GOPRIVATE='' GONOPROXY='' GONOSUMDB=$core GOMODCACHE=$tmp/mod GOPATH=$tmp/go
unset GIT_DIR GIT_WORK_TREE
for m in "" $nested; do
	path=$core${m:+/$m}
	mkdir -p "$tmp/use/$m"
	cd "$tmp/use/$m"
	go mod init example.com/use >"$tmp/log" 2>&1
	go get "$path@$version" >"$tmp/log" 2>&1 && go build -o /dev/null "$path/..." >>"$tmp/log" 2>&1 ||
		fail "go get and go build of $path: $(cat "$tmp/log")"
	echo "go get $path: ok"
	# Licences of what released modules link in, by what their texts must say.
	[[ $m == examples/* || $m == bench || $m == */interop || $m == */browser ]] && continue
	for dir in $(go list -deps -f '{{with .Module}}{{if not .Main}}{{.Dir}}{{end}}{{end}}' "$path/..." | sort -u); do
		grep -qsE 'Apache License|Permission is hereby granted|Permission to use, copy|Redistribution and use in source and binary' \
			"$dir"/{LICEN[SC]E,COPYING}* || fail "$dir has no licence that is known as permissive: replace that dependency, or add its licence here"
	done
	echo "licences of $path: ok"
done
for program in $(cd "$tmp/tree" && grep -l '^package main$' cmd/*/*.go | xargs -n1 dirname | sort -u); do
	(cd "$tmp" && go install "$core/$program@$version") >"$tmp/log" 2>&1 || fail "go install $core/$program: $(cat "$tmp/log")"
	echo "go install $core/$program: ok"
done

# A program builds where libfabric's headers are missing, and says what to install. The
# define is for Go's build cache, which does not notice headers.
cd "$tmp/use"
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	_, err := rdmanet.Dial("rdma", "127.0.0.1:1")
	fmt.Println(err)
}
EOF
said=$(CGO_ENABLED=1 CGO_CFLAGS='-g -O2 -DWITHOUT_HEADERS' unshare -m sh -c '
	mount -t tmpfs none /usr/include/rdma && go run .' 2>&1) || fail "without libfabric's headers: $said"
[[ $said == *libfabric-dev* ]] || fail "without libfabric's headers a program must say what to install: $said"
echo "without headers: $said"
