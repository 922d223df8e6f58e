package pool

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages, which a provider that copies across address
// spaces pins far faster. It is a hint: nothing depends on the kernel following it.
func adviseHuge(mem []byte) {
	if len(mem) >= piece {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
}

// adviseSmall asks for small pages where huge ones are the rule: the first touch of a
// huge page takes as long as clearing all of it.
func adviseSmall(mem []byte) { _ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) }

// populate faults in memory that holds zeroes: in one call, since Linux 5.14, instead of one fault for
// each page, which can take microseconds in a virtual machine.
func populate(mem []byte) {
	if unix.Madvise(mem, unix.MADV_POPULATE_WRITE) != nil {
		touch(mem)
	}
}
