#!/bin/sh
# Installs what is needed besides Go: a C compiler, and libfabric with its headers; with
# the argument "hosts" also what the tests of several hosts need, with "browser" a browser
# for the test of the debug page, with "distros" what makes roots of other suites, with
# "libfabrics" what libfabric is built with. Does nothing, quickly, when they are there.
set -eu

# The lowest libfabric whose interface the binding is written against.
minimum=1.17

have() { command -v "$1" >/dev/null 2>&1; }

have go || {
	echo "Go is not installed: Go 1.26 or later is needed, see https://go.dev/doc/install" >&2
	exit 1
}

[ "$(go env GOOS)" = linux ] || {
	echo "libfabric is used on Linux only: elsewhere fabricnet compiles, and its dialers and listeners return an error." >&2
	exit 0
}

# CC may carry arguments; its first word is the program.
compiler() { set -- $(go env CC); echo "${1:-gcc}"; }

packages="gcc libc6-dev libfabric-dev" tools=
case "${1:-}" in
hosts) packages="$packages iproute2 util-linux" tools="ip nsenter" ;;
containers) packages="$packages debootstrap util-linux buildah runc prometheus" tools="debootstrap unshare buildah runc promtool" ;;
browser) packages="$packages chromium" tools="chromium" ;;
distros) packages="$packages debootstrap util-linux" tools="debootstrap unshare" ;;
libfabrics) packages="$packages git make autoconf automake libtool" tools="git make autoreconf automake libtoolize" ;;
esac

# headers succeeds if those that the build finds are of the minimum or later, and prints
# their version.
headers() {
	version=$(printf '#include <rdma/fabric.h>\nversion FI_MAJOR_VERSION.FI_MINOR_VERSION\n' |
		$(go env CC) $(go env CGO_CFLAGS) -E -P - 2>/dev/null | sed -n 's/^version //p' | tr -d ' ')
	echo "${version:=none}"
	[ "$version" != none ] && [ "$(printf '%s\n' $minimum "$version" | sort -V | head -n 1)" = $minimum ]
}

ready() {
	for tool in $tools; do
		have "$tool" || return 1
	done
	have "$(compiler)" && headers >/dev/null
}

# make LIBFABRIC=prefix: no other headers or library must be found instead.
if [ -n "${LIBFABRIC:-}" ]; then
	[ -e "$LIBFABRIC/include/rdma/fabric.h" ] && [ -e "$RDMANET_LIBFABRIC" ] && ready && exit 0
	echo "A C compiler is needed, and under $LIBFABRIC there must be libfabric $minimum or later with its headers." >&2
	exit 1
fi

ready && exit 0
before=$(headers || true)

if have apt-get; then
	root=
	[ "$(id -u)" = 0 ] || root=sudo
	$root apt-get update -q
	$root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends $packages
else
	cat >&2 <<EOF
A C compiler and libfabric $minimum or later with its headers are needed${tools:+, and $tools}. Install them with

  Fedora, RHEL:  dnf install gcc libfabric-devel
  Arch:          pacman -S gcc libfabric

The C library must be glibc: with another, programs compile, but find no libfabric.
EOF
	exit 1
fi

ready || {
	echo "libfabric $minimum or later${tools:+ and $tools} are needed; this system has headers of $(headers || true)." >&2
	exit 1
}

# Go's build cache does not notice that headers have come. What was built with -race and
# without them stays: its error names -a.
[ "$before" = "$(headers)" ] || (cd "$(dirname "$0")/.." && go build -a ./cgo/ofi)
