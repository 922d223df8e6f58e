//go:build linux && cgo

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// A way out of calls that never return. shm guards a region, or from libfabric 2.5 on a pool of
// buffers in it, with a spin lock that both processes share: a process that is killed while it
// holds the lock leaves the other one spinning for ever. A guarded call notes where it was made,
// and a signal to its thread makes the thread go on from there, whatever the library is doing. What
// the library has locked stays locked: nothing may call it for that endpoint again.

// One for each thread that has made a guarded call. They are never freed, but new threads take over
// those of threads that have ended.
struct guard {
	sigjmp_buf out;
	_Atomic(struct ofi_port *) port; // of the call that is going on
	_Atomic uint64_t calls;          // begun so far
	_Atomic pid_t tid;               // 0: the thread has ended
	struct guard *next;
};

static _Atomic(struct guard *) guards;
static __thread struct guard *mine;
static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *guard)
{
	mine = NULL; // a late signal must not hit whoever takes it over
	atomic_store(&((struct guard *)guard)->tid, 0);
}

static void make_key(void)
{
	if (pthread_key_create(&ending, thread_ends))
		abort(); // 1024 keys are in use: nothing will work
}

static struct guard *adopt(pid_t tid)
{
	for (struct guard *g = atomic_load(&guards); g; g = g->next) {
		pid_t none = 0;

		if (atomic_compare_exchange_strong(&g->tid, &none, tid))
			return g;
	}
	return NULL;
}

static int way_out(void) { return SIGRTMAX - 3; }

static void unblock(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, way_out());
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static struct guard *this_thread(void)
{
	pid_t tid;
	struct guard *g;

	if (mine)
		return mine;
	pthread_once(&once, make_key);
	tid = (pid_t)syscall(SYS_gettid);
	g = adopt(tid);
	if (!g) {
		g = calloc(1, sizeof(*g));
		if (!g)
			return NULL;
		atomic_store(&g->tid, tid);
		g->next = atomic_load(&guards);
		while (!atomic_compare_exchange_weak(&guards, &g->next, g))
			;
	}
	pthread_setspecific(ending, g);
	mine = g;
	unblock(); // the thread may have inherited a mask that blocks it
	return g;
}

// A call that was got out returns EOWNERDEAD. Nobody can tell which of its operations were posted,
// and nothing will come of them.
int ofi_guarded(struct ofi_port *port, struct ofi_batch *batch,
		_Atomic int *abandoned)
{
	struct guard *g = this_thread();

	if (!g)
		return ENOMEM;
	if (sigsetjmp(g->out, 0)) {
		atomic_store(&g->port, NULL);
		unblock(); // the handler did not return
		return EOWNERDEAD;
	}
	atomic_store_explicit(
		&g->calls,
		atomic_load_explicit(&g->calls, memory_order_relaxed) + 1,
		memory_order_relaxed); // only this thread writes it
	atomic_store_explicit(&g->port, port, memory_order_release);
	// ofi_eject looks for calls until there are none: a call that does not see the mark here is
	// seen there.
	if (atomic_load(abandoned)) {
		atomic_store(&g->port, NULL);
		return EOWNERDEAD;
	}
	ofi_exchange_now(port, batch);
	atomic_store_explicit(&g->port, NULL, memory_order_release);
	return 0;
}

int ofi_calls(struct ofi_port *port, struct ofi_call *calls, int max)
{
	int n = 0;

	for (struct guard *g = atomic_load(&guards); g && n < max; g = g->next) {
		if (atomic_load(&g->port) != port)
			continue;
		calls[n].tid = atomic_load(&g->tid);
		calls[n++].number = atomic_load(&g->calls);
	}
	return n;
}

static void get_out(int sig)
{
	struct guard *g = mine;

	(void)sig;
	if (g && ofi_is_abandoned(atomic_load(&g->port)))
		siglongjmp(g->out, 1);
}

int ofi_eject(struct ofi_port *port)
{
	static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
	const struct timespec pause = { .tv_nsec = 1000 * 1000 };
	const int sig = way_out();
	struct sigaction out, before;
	struct ofi_call calls[64];
	int n;

	memset(&out, 0, sizeof(out));
	out.sa_handler = get_out;
	// Like Go's own handlers, it runs on the thread's signal stack.
	out.sa_flags = SA_ONSTACK | SA_RESTART;
	pthread_mutex_lock(&one_at_a_time);
	if (sigaction(sig, &out, &before)) {
		pthread_mutex_unlock(&one_at_a_time);
		return -errno;
	}
	// For up to two seconds, since a thread may have to wait for a processor. At first without
	// a signal: calls that do not hang may hold locks of the whole process, such as malloc's,
	// and end by themselves. The first look cannot be relied on: a call that has just begun may
	// not be visible yet.
	for (int i = 0; i < 2000; i++) {
		n = ofi_calls(port, calls, 64);
		if (!n && i > 0)
			break;
		for (int j = 0; i % 100 == 20 && j < n; j++)
			syscall(SYS_tgkill, getpid(), calls[j].tid, sig);
		nanosleep(&pause, NULL);
	}
	// A signal that is still on its way then finds the previous handler. In Go programs that
	// one drops signals that nobody asked for. Without any handler the signal would end the
	// process.
	if (before.sa_handler != SIG_DFL)
		sigaction(sig, &before, NULL);
	pthread_mutex_unlock(&one_at_a_time);
	return n ? -EBUSY : 0;
}
