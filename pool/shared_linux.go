package pool

import (
	"cmp"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sealed has the seals of a shared file. They forbid whatever could keep part of the file from
// being touched as long as it is mapped.
const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// headSize is the size of what precedes the memory in a shared file, the mark first.
var headSize = os.Getpagesize()

// mapShared makes a sealed file for size bytes and maps these.
func mapShared(size int, mark Mark) ([]byte, SharedName, error) {
	fd, err := memfd("fabricnet-landing")
	if err != nil {
		return nil, SharedName{}, fmt.Errorf("%w: %w", errNotShared, err)
	}
	mem, name, err := mapSealed(fd, size, mark)
	if err != nil {
		unix.Close(fd)
		return nil, SharedName{}, fmt.Errorf("%w: %w", errNotShared, err)
	}
	return mem, name, nil
}

// memfd makes a file that cannot be executed, where the kernel supports that (since 6.3): such a
// kernel may refuse other files (sysctl vm.memfd_noexec).
func memfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

func mapSealed(fd, size int, mark Mark) (mem []byte, name SharedName, err error) {
	if err := unix.Ftruncate(fd, int64(headSize+size)); err != nil {
		return nil, name, os.NewSyscallError("ftruncate", err)
	}
	// A lack of memory is an error here; without Fallocate it would be a signal at the first touch.
	err = unix.EINTR // older kernels give up at any signal, for example the profiler's
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(fd, 0, 0, int64(headSize+size))
	}
	if err != nil {
		return nil, name, os.NewSyscallError("fallocate", err)
	}
	if _, err := unix.Pwrite(fd, mark[:], 0); err != nil {
		return nil, name, os.NewSyscallError("pwrite", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		return nil, name, os.NewSyscallError("fcntl", err)
	}
	inode, err := checkSealed(fd, size)
	if err != nil {
		return nil, name, err
	}
	mem, err = mapFile(fd, size, 0)
	return mem, SharedName{uint32(fd), inode, mark}, err
}

// checkSealed makes sure that a file is sealed, and complete for size bytes of memory. Before the file was sealed, other
// processes could open it through /proc, too, and shorten it; afterwards nobody can.
func checkSealed(fd, size int) (inode uint64, err error) {
	switch seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); {
	case err != nil:
		return 0, os.NewSyscallError("fcntl", err)
	case seals&sealed != sealed:
		return 0, fmt.Errorf("it is not sealed: %#x", seals)
	}
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return 0, os.NewSyscallError("fstat", err)
	case st.Size != int64(headSize+size) || st.Blocks*512 < st.Size:
		return 0, fmt.Errorf("it has %d bytes, of which %d are there, and should have %d", st.Size, st.Blocks*512, headSize+size)
	}
	return st.Ino, nil
}

func mapFile(fd, size, flags int) ([]byte, error) {
	at, err := unix.MmapPtr(fd, int64(headSize), nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return unsafe.Slice((*byte)(at), size), nil
}

// memfdDevice returns the device number of all files of memfd_create, except for those of huge
// pages, whose memory cannot be relied on. It does not change while the system runs.
func memfdDevice() (dev [2]uint32, err error) {
	if known := knownDevice.Load(); known != nil {
		return *known, nil
	}
	fd, err := memfd("fabricnet")
	if err != nil { // descriptors may be short for now
		return dev, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return dev, os.NewSyscallError("statx", err)
	}
	dev = [2]uint32{st.Dev_major, st.Dev_minor}
	knownDevice.Store(&dev)
	return dev, nil
}

var knownDevice atomic.Pointer[[2]uint32]

// findShared finds another process's file, and does not open it. The name leads to whatever
// that process likes, which is therefore inspected first: to open a file on a file system of
// that process's own, for example, could hang this one.
func findShared(proc *os.File, n SharedName) (path *os.File, size int, err error) {
	dir, err := proc.SyscallConn() // proc's Close waits for what this does
	if err != nil {
		return nil, 0, err
	}
	var fd int
	closed := dir.Control(func(at uintptr) {
		fd, err = unix.Openat(int(at), fmt.Sprintf("fd/%d", n.FD), unix.O_PATH|unix.O_CLOEXEC, 0)
	})
	if err = cmp.Or(closed, err); err != nil {
		return nil, 0, os.NewSyscallError("openat", err)
	}
	path = os.NewFile(uintptr(fd), "a peer's memory")
	if size, err = checkShared(fd, n); err != nil {
		return nil, 0, errors.Join(err, path.Close())
	}
	return path, size, nil
}

// checkShared makes sure that path leads to the file that n names, as far as can be told before it
// is opened, and returns how many bytes of memory it has.
func checkShared(path int, n SharedName) (size int, err error) {
	dev, err := memfdDevice()
	if err != nil {
		return 0, err
	}
	var st unix.Statx_t
	if err := unix.Statx(path, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return 0, os.NewSyscallError("statx", err)
	}
	switch {
	case [2]uint32{st.Dev_major, st.Dev_minor} != dev || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != n.Inode || n.Inode == 0:
		return 0, errors.New("it is another file")
	case int(st.Uid) != os.Geteuid():
		return 0, fmt.Errorf("owned by uid %d, this process runs as uid %d", st.Uid, os.Geteuid())
	case st.Size <= uint64(headSize) || st.Size > uint64(headSize)+MaxShared:
		return 0, fmt.Errorf("it has %d bytes", st.Size)
	case st.Blocks*512 < st.Size: // this process would pay for the rest
		return 0, fmt.Errorf("of its %d bytes %d are there", st.Size, st.Blocks*512)
	}
	return int(st.Size) - headSize, nil
}

// openShared maps a file that findShared has found, if it begins with the mark.
func openShared(path *os.File, size int, mark Mark) ([]byte, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", path.Fd()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	if _, err := checkSealed(fd, size); err != nil {
		return nil, err
	}
	var head Mark
	if _, err := unix.Pread(fd, head[:], 0); err != nil {
		return nil, os.NewSyscallError("pread", err)
	}
	if subtle.ConstantTimeCompare(head[:], mark[:]) == 0 {
		return nil, errors.New("it was not made for this peer")
	}
	return mapFile(fd, size, unix.MAP_POPULATE)
}

// dropShared gives back the pages of a shared file, whoever has it mapped, and closes it.
func dropShared(n SharedName, size int) {
	_ = unix.Fallocate(int(n.FD), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(headSize+size)) // if this fails, they go with the last mapping
	_ = unix.Close(int(n.FD))
}
