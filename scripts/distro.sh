#!/bin/bash
# Runs a command in a root of another suite of Debian, such as trixie or sid.
#
#   scripts/distro.sh SUITE COMMAND [ARGUMENT...]
#
# The root has debootstrap's minbase, a C compiler, make and git, and this machine's Go. It is
# made once a week, from the archive that apt-get uses here (or MIRROR). The command runs in a
# copy of the current directory, as root, with its own /dev/shm and process numbers. What it
# writes stays in memory and is gone afterwards. The script exits with the command's status.
set -euo pipefail

[ $# -ge 2 ] || {
	sed -n '2,9s/^# \{0,1\}//p' "$0"
	exit 2
}
[ "$(id -u)" = 0 ] || {
	echo "A root of another suite needs mounts and chroot: run this as root." >&2
	exit 1
}
export suite=$1
shift
export cache=${XDG_CACHE_HOME:-$HOME/.cache}/fabricnet
export base=$cache/debian-$suite
export mirror=${MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian Debian //p' | head -n 1)}
[ -n "$mirror" ] || {
	echo "apt-get knows no archive of Debian's here (after apt-get update): name one, MIRROR=http://..." >&2
	exit 1
}

# make_root puts a new root into the cache. All current suites are bootstrapped like sid.
make_root() {
	echo "making a root of $suite in $base"
	rm -rf "$base.new"
	mkdir -p "$cache"
	eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
	http_proxy=${http_proxy:-} debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,make,git \
		"$suite" "$base.new" "$mirror" sid >"$base.log" 2>&1 || {
		tail -n 5 "$base.log"
		rm -rf "$base.new"
		echo "The suite $suite cannot be had from $mirror: $base.log has more." >&2
		exit 1
	}
	rm -rf "$base"
	mv "$base.new" "$base" # last: its presence means that it is complete
}

# mount_root puts a writable layer in memory over the root, and mounts what a machine has.
mount_root() {
	mkdir -p "$layer"
	mount -t tmpfs layer "$layer"
	mkdir "$layer"/{upper,work,root}
	mount -t overlay -o "lowerdir=$base,upperdir=$layer/upper,workdir=$layer/work" overlay "$root"
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
	cp /etc/resolv.conf /etc/hosts "$root/etc/"
	apt-config dump | grep -E '^Acquire::(Check-|https?::Proxy)' >"$root/etc/apt/apt.conf.d/90host" || true
}

# in_root runs a command in the root, in namespaces that end with it.
in_root() {
	local layer=$base.layer root=$base.layer/root goroot modules builds dir version
	mount_root
	goroot=$(go env GOROOT) modules=$(go env GOMODCACHE) builds=$(go env GOCACHE)
	for dir in "$goroot" "$modules" "$builds"; do
		mkdir -p "$dir" "$root$dir"
		mount --bind "$dir" "$root$dir"
	done
	mount -o remount,bind,ro "$root$goroot"
	mkdir "$root/fabricnet"
	tar -c --exclude=./.git --exclude=./bin . | tar -x --no-same-owner -C "$root/fabricnet"

	# Go's build cache does not track libfabric's headers, so their version is put into the flags.
	chroot "$root" apt-get update -q
	version=$(chroot "$root" apt-cache show --no-all-versions libfabric-dev | sed -n 's/^Version: //p')
	env -i HOME=/root TERM="${TERM:-dumb}" PATH="$goroot/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		GOMODCACHE="$modules" GOCACHE="$builds" GOTOOLCHAIN=local GOPROXY="$(go env GOPROXY)" \
		CGO_CPPFLAGS="-DSUITE=$suite-$version" \
		chroot "$root" bash -c 'cd /fabricnet && "$@"' - "$@"
}

./scripts/deps.sh distros
export -f make_root mount_root in_root
exec unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
	[ -n "$(find "$base" -maxdepth 0 -mtime -7 2>/dev/null)" ] || make_root
	in_root "$@"' - "$@"
