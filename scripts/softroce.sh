#!/bin/bash
# Runs a command in a virtual machine that has an RDMA device made of software:
# Soft-RoCE, rxe0 at 10.9.0.1, the kernel's own verbs over Ethernet.
#
#   scripts/softroce.sh [-t SECONDS] COMMAND [ARGUMENT...]
#
# The machine has Debian's kernel and sees this one's files. What the command writes
# stays in the machine's memory and is gone afterwards. It starts in the current
# directory, as root. The exit status is the command's, or 124 after SECONDS (600).
# If KVM cannot be used, the processor is emulated, and everything is much slower.
set -euo pipefail

address=10.9.0.1
memory=4096 # MiB
limit=600
while getopts t: option; do
	case $option in
	t) limit=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [ $# = 0 ]; then
	sed -n '2,10s/^# \{0,1\}//p' "$0"
	exit 2
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/fabricnet
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the machine is made of, and what programs in it need from this one's files.
packages="qemu-system-x86 busybox-static cpio kmod iproute2 rdma-core ibverbs-providers rdmacm-utils"

install_packages() {
	local missing=() p
	for p in $packages; do
		dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p")
	done
	[ ${#missing[@]} = 0 ] && return
	local root=
	[ "$(id -u)" = 0 ] || root=sudo
	$root apt-get update -q
	$root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# kernel puts Debian's kernel into the cache, with the modules that are needed, in the
# order in which they load.
kernel() {
	local image release module file
	image=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1) || true
	[ -n "$image" ] || {
		echo "Debian's package linux-image-amd64 is not known to apt-get on this system." >&2
		exit 1
	}
	(cd "$work" && apt-get download -q -o APT::Sandbox::User=root "$image" && dpkg-deb -x "$image"_*.deb kernel)
	release=${image#linux-image-}
	depmod -b "$work/kernel" "$release"
	mkdir -p "$work/initrd/modules"
	# rdma_rxe asks for crc32_generic at run time, which modprobe does not show.
	for module in overlay 9pnet_virtio 9p virtio_pci virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm; do
		modprobe -d "$work/kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \(\S*\).*/\1/p'
	done | awk '!seen[$0]++' | while read -r file; do
		cp "$file" "$work/initrd/modules/"
		basename "$file" >>"$work/initrd/modules/order"
	done
	mkdir -p "$work"/initrd/{bin,proc,sys,dev}
	cp "$(command -v busybox)" "$work/initrd/bin/"
	mkdir -p "$cache"
	archive "$work/initrd" >"$cache/initrd.new"
	cp "$work"/kernel/boot/vmlinuz-* "$cache/vmlinuz"
	mv "$cache/initrd.new" "$cache/initrd" # last: its presence means that all is there
}

# init prints the machine's first program, which puts a writable layer in memory over
# the files of the host, and runs /command there.
init() {
	cat <<-'EOF'
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		mount -t proc proc /proc
		mount -t sysfs sys /sys
		mount -t devtmpfs dev /dev
		while read -r module; do insmod "/modules/$module"; done </modules/order
		mkdir -p /host /layer /root
		mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose host /host
		mount -t tmpfs layer /layer
		mkdir /layer/upper /layer/work
		mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /root
		for d in proc sys dev; do mount --move /$d /root/$d; done
		mkdir -p /root/dev/shm /root/dev/pts
		mount -t tmpfs shm /root/dev/shm
		mount -t devpts pts /root/dev/pts
		cp /command /root/.command
		chroot /root /bin/bash /.command </root/dev/null
		echo "exit status $?" >/root/dev/ttyS1
		poweroff -f
	EOF
}

# archive prints a directory as an archive that the kernel unpacks when it starts.
archive() { (cd "$1" && find . -print0 | cpio -0 -o -H newc --quiet | gzip -1); }

# command_file prints the commands that the machine is to run.
command_file() {
	cat <<-EOF
		export PATH=$PATH HOME=$HOME
		ulimit -l unlimited
		ip link set lo up
		ip address add $address/24 dev eth0
		ip link set eth0 up
		rdma link add rxe0 type rxe netdev eth0 || exit 97
		until rdma link show rxe0/1 | grep -q 'state ACTIVE'; do sleep 0.1; done
		cd $(printf %q "$PWD") || exit
		$(printf '%q ' "$@")
	EOF
}

install_packages
[ -s "$cache/initrd" ] || kernel
mkdir "$work/program"
init >"$work/program/init"
chmod +x "$work/program/init"
command_file "$@" >"$work/program/command"
{
	cat "$cache/initrd"
	archive "$work/program"
} >"$work/start"

# Nested virtualization may hang, so emulate inside another virtual machine. Unless the kernel
# is told to trust an emulated TSC, it does not: then programs read the time by system calls,
# and its scheduler counts in ticks of 4 ms.
accelerator=tcg,thread=multi
clock="tsc=reliable clocksource=tsc"
if [ -w /dev/kvm ] && ! grep -q '^flags.* hypervisor' /proc/cpuinfo; then
	accelerator=kvm
	clock=
fi
status=0
timeout --foreground "$limit" qemu-system-x86_64 \
	-accel "$accelerator" -cpu max -smp 2 -m "$memory" -no-reboot -nodefaults -display none \
	-kernel "$cache/vmlinuz" -initrd "$work/start" -append "console=ttyS0 quiet loglevel=1 panic=-1 $clock" \
	-serial stdio -serial "file:$work/status" \
	-fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
	-device virtio-9p-pci,fsdev=host,mount_tag=host \
	-netdev user,id=net,restrict=on -device virtio-net-pci,netdev=net,romfile= \
	</dev/null | sed -u 's|\r$||' || status=$?
answer=$(sed -n 's/^exit status \([0-9]*\).*/\1/p' "$work/status" 2>/dev/null || true)
if [ -z "$answer" ]; then
	echo "the virtual machine ended without an answer (qemu: $status, 124 means more than $limit s)" >&2
	exit 124
fi
exit "$answer"
