package pool

import "golang.org/x/sys/unix"

const hugePage = 2 << 20

// adviseHuge asks for huge pages, which a provider that copies across address
// spaces pins far faster. It is a hint: nothing depends on its being taken.
func adviseHuge(mem []byte) {
	if len(mem) >= hugePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
}
