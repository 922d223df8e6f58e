// Asks librdmacm for the way to a peer, as the verbs provider does. The library's functions are
// looked up by name, like those of libibverbs: see devices.c.

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "resolve.h"

enum { PS_TCP = 0x0106 }; // RDMA_PS_TCP, the port space of connections

int ofi_resolve(const void *from, const void *to, int milliseconds)
{
	int (*create_id)(void *channel, void **id, void *context, int port_space);
	int (*resolve_addr)(void *id, const void *from, const void *to, int milliseconds);
	int (*destroy_id)(void *id);
	void *lib = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL), *id;
	int ret;

	if (!lib)
		return 0;
	*(void **)&create_id = dlsym(lib, "rdma_create_id");
	*(void **)&resolve_addr = dlsym(lib, "rdma_resolve_addr");
	*(void **)&destroy_id = dlsym(lib, "rdma_destroy_id");
	if (!create_id || !resolve_addr || !destroy_id ||
	    create_id(NULL, &id, NULL, PS_TCP)) // without a channel, calls wait for their result
		return 0; // no device
	ret = resolve_addr(id, from, to, milliseconds) ? -errno : 0;
	destroy_id(id);
	return ret;
}
