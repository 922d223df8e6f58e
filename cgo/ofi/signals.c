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

// Go has a single handler, and SIGSEGV always has it. So a handler that none of these signals had
// before is a provider's.
static int is_provider(const struct sigaction *now,
		       const struct ofi_signals *saved)
{
	if (now->sa_handler == SIG_DFL || now->sa_handler == SIG_IGN)
		return 0;
	for (int i = 0; i < CAUGHT; i++)
		if (now->sa_sigaction == saved->actions[i].sa_sigaction)
			return 0;
	return 1;
}

// Restores only what a provider has replaced, so as not to undo what os/signal does meanwhile:
// Ignore and Reset leave no handler, and Notify leaves Go's.
void ofi_signals_restore(struct ofi_signals *saved)
{
	struct sigaction now;

	for (int i = 0; i < CAUGHT; i++) {
		sigaction(caught[i], NULL, &now);
		if (is_provider(&now, saved))
			sigaction(caught[i], &saved->actions[i], NULL);
	}
	free(saved);
}
