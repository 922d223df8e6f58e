//go:build linux && cgo

#define _GNU_SOURCE // dladdr, dlvsym

#include "shim.h"

#ifdef OFI_LOADS

#include "load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct ofi_exports ofi_exports;

uint32_t ofi_compiled(void)
{
	return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
}

enum { OLDEST = 3 }; // FABRIC_1.3: all of libfabric 1.17 to 1.19

// The newest ABI that the headers know. Each of these added members at the end of struct
// fi_domain_attr (libfabric.map.in, abi_1_0.c). Using an older ABI with newer headers only means
// leaving those members alone, since the library allocates the structure. The headers do not tell
// what comes with an ABI after these.
static int newest(void)
{
	const uint32_t v = ofi_compiled();

	return v >= FI_VERSION(2, 5) ? 9 :
	       v >= FI_VERSION(2, 0) ? 8 :
	       v >= FI_VERSION(1, 20) ? 7 : OLDEST;
}

static void *symbol(void *lib, const char *name, int abi)
{
	char version[32];

	snprintf(version, sizeof(version), "FABRIC_1.%d", abi);
	return dlvsym(lib, name, version);
}

// A function that an ABI did not change is exported by an earlier one.
static void *inherited(void *lib, const char *name, int abi)
{
	void *found = NULL;

	for (; !found && abi >= 0; abi--)
		found = symbol(lib, name, abi);
	return found;
}

// Finds everything in ofi_exports as of one ABI and returns that ABI, or the name of what is
// missing. Each ABI that changed a structure has a fi_getinfo of its own.
static int resolve(void *lib, const char **missing)
{
	const struct {
		const char *name;
		void *to;
	} wanted[] = {
		{ "fi_getinfo", &ofi_exports.getinfo },
		{ "fi_freeinfo", &ofi_exports.freeinfo },
		{ "fi_dupinfo", &ofi_exports.dupinfo },
		{ "fi_fabric", &ofi_exports.fabric },
		{ "fi_version", &ofi_exports.version },
		{ "fi_tostr", &ofi_exports.tostr },
	};
	int abi = newest();

	while (abi > OLDEST && !symbol(lib, "fi_getinfo", abi))
		abi--;
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *found = inherited(lib, wanted[i].name, abi);

		if (!found) {
			*missing = wanted[i].name;
			return -1;
		}
		memcpy(wanted[i].to, &found, sizeof(found));
	}
	return abi;
}

// The library is never closed: its providers may leave threads, signal handlers and thread-local
// storage behind.
int ofi_load(const char *file, struct ofi_library *lib)
{
	const char *missing = NULL;
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	Dl_info where;

	if (!handle) {
		snprintf(lib->why, sizeof(lib->why), "%s", dlerror());
		return -1;
	}
	lib->abi = resolve(handle, &missing);
	if (missing) {
		snprintf(lib->why, sizeof(lib->why), "%s: no %s of FABRIC_1.%d or before",
			 file, missing, newest());
		return -1;
	}
	lib->version = ofi_exports.version();
	lib->text = ofi_exports.tostr("", FI_TYPE_VERSION);
	lib->path = file;
	if (dladdr((void *)ofi_exports.getinfo, &where))
		lib->path = where.dli_fname;
	return 0;
}

#endif
