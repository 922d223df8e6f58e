#!/bin/sh
# Installs what is needed besides Go: a C compiler, and libfabric with its headers. The
# argument "hosts" adds what the tests of several hosts need, "containers" what containers.sh
# needs, "browser" a browser for the test of the debug page, "distros" what makes roots of other
# suites, "libfabrics" what builds libfabric, "workswith" the servers that examples/workswith
# starts. If all is there, it quickly does nothing.
set -eu

# The oldest libfabric whose interface the binding supports.
minimum=1.17

# Debian keeps PostgreSQL's programs out of PATH.
have() { command -v "$1" >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1; }

have go || {
	echo "Go is not installed: Go 1.26 or later is needed, see https://go.dev/doc/install" >&2
	exit 1
}

[ "$(go env GOOS)" = linux ] || {
	echo "libfabric is used on Linux only: elsewhere fabricnet compiles, and its dialers and listeners return an error." >&2
	exit 0
}

# CC may contain arguments: its first word is the program.
compiler() { set -- $(go env CC); echo "${1:-gcc}"; }

packages="gcc libc6-dev libfabric-dev" tools= services=
case "${1:-}" in
hosts) packages="$packages iproute2 nftables util-linux" tools="ip nft nsenter" ;;
containers) packages="$packages debootstrap util-linux buildah runc prometheus" tools="debootstrap unshare buildah runc promtool" services=yes ;;
browser) packages="$packages chromium" tools="chromium" ;;
distros) packages="$packages debootstrap util-linux" tools="debootstrap unshare" ;;
workswith) packages="$packages postgresql redis-server" tools="postgres redis-server" services=yes ;;
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

# With make LIBFABRIC=prefix, no other headers and no other library may be used instead.
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
	# Debian starts the services that it installs, and none of these is wanted.
	policy=/usr/sbin/policy-rc.d
	[ -z "$services" ] || [ -e $policy ] || {
		trap '$root rm -f $policy' EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM HUP
		printf '#!/bin/sh\nexit 101\n' | $root install -m 755 /dev/stdin $policy
	}
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

# Go's build cache does not notice new headers, so the binding is built again. What was built
# with -race and without headers stays in the cache; its error says to build with -a.
[ "$before" = "$(headers)" ] || (cd "$(dirname "$0")/.." && go build -a ./cgo/ofi)
