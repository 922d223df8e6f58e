//go:build linux && cgo

#define _GNU_SOURCE // dl_iterate_phdr

#include "shim.h"

#include <link.h>

// The first object is the program itself, which asks for a dynamic linker by PT_INTERP. That the
// program is position-independent says nothing, since -static-pie exists, and AT_BASE of
// getauxval(3) is 0, too, where somebody has called the dynamic linker by name.
static int asks(struct dl_phdr_info *info, size_t size, void *linker)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_INTERP)
			*(int *)linker = 1;
	return 1; // no further objects
}

int ofi_static(void)
{
	int linker = 0;

	dl_iterate_phdr(asks, &linker);
	return !linker;
}
