//go:build linux && cgo

#include "shim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

// The signals for which providers are known to install handlers of their own
// (shm, psm3, opx). shm's clean up and raise the signal again, which turns a
// nil dereference that Go would have recovered from into a broken endpoint.
static const int caught[] = {
	SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT,
	SIGBUS, SIGFPE, SIGSEGV, SIGTERM,
};

enum { CAUGHT = sizeof(caught) / sizeof(caught[0]) };

struct ofi_signals {
	struct sigaction actions[CAUGHT];
};

struct ofi_signals *ofi_signals_save(void)
{
	struct ofi_signals *saved = calloc(1, sizeof(*saved));

	if (!saved)
		return NULL;
	for (int i = 0; i < CAUGHT; i++)
		sigaction(caught[i], NULL, &saved->actions[i]);
	return saved;
}

// Puts back only what has changed, so as not to undo what os/signal does to
// other signals meanwhile.
void ofi_signals_restore(struct ofi_signals *saved)
{
	struct sigaction now;

	for (int i = 0; i < CAUGHT; i++) {
		sigaction(caught[i], NULL, &now);
		if (now.sa_sigaction != saved->actions[i].sa_sigaction)
			sigaction(caught[i], &saved->actions[i], NULL);
	}
	free(saved);
}
