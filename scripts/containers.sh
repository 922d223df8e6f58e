#!/bin/bash
# Checks what docs/containers.md says, as root: buildah builds the Containerfile, from a root that
# debootstrap makes, since that needs no registry; the HTTP example runs in two containers that
# share memory, and in two that do not; the manifest is parsed, and the alerts are checked.
#
# Everything is kept in a temporary folder, except for the root (see distro.sh) and Go's caches.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || {
	echo "Containers need namespaces and mounts: run this as root." >&2
	exit 1
}
./scripts/deps.sh containers

echo "== alerts"
promtool check rules metrics/rdmaprom/alerts.yaml
(cd metrics/rdmaprom && promtool test rules alerts_test.yaml)

echo "== manifest"
(cd examples/containers && go test -count=1 ./...)

echo "== image"
./scripts/distro.sh trixie true # makes the root, unless there is one of this week
base=${XDG_CACHE_HOME:-$HOME/.cache}/fabricnet/debian-trixie
work=$(mktemp -d)
server_pid=
# leaf prints the process that the last in the line of a process's children is. It is the
# container's own, with whose end buildah's end.
leaf() {
	local child
	child=$(pgrep -P "$1" | head -n 1 || true)
	if [ -n "$child" ]; then leaf "$child"; else echo "$1"; fi
}

# stop ends the server. It may be the first process of a PID namespace, which SIGTERM does not end.
stop() {
	[ -n "$server_pid" ] || return 0
	kill -KILL "$(leaf "$server_pid")" 2>/dev/null || true
	wait "$server_pid" 2>/dev/null || true
	server_pid=
}

cleanup() {
	stop
	buildah rm --all >/dev/null 2>&1 || true
	umount "$work/shm" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
mkdir -p "$work"/{storage,run,bin}
buildah() { BUILDAH_RUNTIME=runc command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

# image NAME [GOROOT] makes an image of the root, with Go if GOROOT is given.
image() {
	local ctr root
	ctr=$(buildah from scratch)
	root=$(buildah mount "$ctr")
	cp -a "$base/." "$root/"
	apt-config dump | grep -E '^Acquire::(Check-|https?::Proxy)' >"$root/etc/apt/apt.conf.d/90host" || true
	if [ $# = 2 ]; then
		mkdir -p "$root/usr/local/go"
		cp -a "$2/." "$root/usr/local/go/"
		buildah config --env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			--env GOTOOLCHAIN=local --env "GOPROXY=$(go env GOPROXY)" "$ctr"
	fi
	buildah umount "$ctr" >/dev/null
	buildah commit -q --rm "$ctr" "$1" >/dev/null
}
image localhost/fabricnet-debian
image localhost/fabricnet-golang "$(go env GOROOT)"
modules=$(go env GOMODCACHE)
mkdir "$work/src"
tar -c --exclude=./.git --exclude=./bin . | tar -x -C "$work/src"
buildah build -q --network host --build-arg GO_IMAGE=localhost/fabricnet-golang --build-arg BASE_IMAGE=localhost/fabricnet-debian \
	--volume "$modules:/root/go/pkg/mod" -t localhost/fabricnet -f examples/containers/Containerfile "$work/src"
buildah run --network host "$(buildah from localhost/fabricnet)" -- fabricnet version

# fetch SAYS OPTION... serves files in one container and downloads one in another. Both are run with
# the options. The output of the download, or its error, has to contain SAYS.
fetch() {
	local says=$1 server client addr
	shift
	echo "== ${*:-a container each}: $says"
	server=$(buildah from --network host localhost/fabricnet)
	client=$(buildah from --network host localhost/fabricnet)
	: >"$work/served"
	buildah run "$@" "$server" -- http -serve 127.0.0.1:0 -dir /etc >"$work/served" 2>&1 &
	server_pid=$!
	for _ in $(seq 100); do
		addr=$(sed -n 's/^serving .* on //p' "$work/served")
		[ -z "$addr" ] || break
		sleep 0.1
	done
	[ -n "$addr" ] || {
		cat "$work/served"
		return 1
	}
	buildah run "$@" "$client" -- http -get "http://$addr/os-release" >"$work/got" 2>&1 || true
	cat "$work/got"
	grep -qF "$says" "$work/got"
	stop
}
mkdir "$work/shm"
mount -t tmpfs -o mode=1777,size=256m shm "$work/shm"
fetch "connected over libfabric provider shm" --pid host --volume "$work/shm:/dev/shm"
fetch "different PID namespaces" --volume "$work/shm:/dev/shm"
fetch "no provider that works on both sides: shm: " --pid host
if pgrep -f -- "--root $work/storage"; then
	echo "these processes of containers are left"
	exit 1
fi
echo PASS
