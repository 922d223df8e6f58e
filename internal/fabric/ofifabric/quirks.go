//go:build linux && cgo

package ofifabric

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// quirk is one way in which a provider, or libfabric itself, differs from what the engine wants or
// from what it says of itself, and what is done about that. Everything that depends on the name of
// a provider or on the version of the library is a row of quirks, and nothing else is.
type quirk struct {
	// provider is a name; "tcp;*" is tcp with or without a layer, "*;ofi_rxm" a layer
	// over anything, "*" everything.
	provider string
	// from is the first version of libfabric that the row is about, and before the first one that
	// it is no longer about, such as "2.5" or "1.18.2"; "" is no bound.
	from, before string

	does effect
	arg  string // its meaning depends on the effect
	// value returns what the variable arg is set to on a machine, "" to leave it alone. Of the rows
	// that set a variable, the first with a value counts. note describes the value.
	value func(machine) string
	note  string

	why    string
	source string // where in libfabric
}

// effect is what is done.
type effect int

const (
	set              effect = iota + 1 // arg is a variable of the environment
	alike                              // arg is a variable that peers must have set alike: fabric.ProviderInfo.Settings
	fabricIsProvider                   // a fabric of the provider arg counts as a provider of its own
	perPeer                            // fabric.Attr.PerPeer
	sameHost                           // fabric.ProviderInfo.SameHost
	looksAtAll                         // fabric.ProviderInfo.Spread
	slowAtFirst                        // fabric.ProviderInfo.WarmsUp
	oneMapping                         // fabric.Attr.OneMapping
	namedRegion                        // its memory has a name in shmDir
	guarded                            // ofi.Options.Guarded
	lockRegions                        // ofi.Options.LockRegions
	slashOwn                           // ofi.Options.SlashOwn
	noWriteData                        // no completion data, whatever it reports
	boundUniverse                      // EINVAL is explained by FI_UNIVERSE_SIZE
	deepQueues                         // ofi.Hints.TxSize and RxSize: as deep as the engine can use
	resolvesFirst                      // ofi.Endpoint.Resolve, before a peer is inserted
	needsMonitor                       // not there while the cache of registrations is disabled
	clamped                            // sizes are cut to what an int holds, whatever the provider
	dataIsWrite                        // a completion with data that is no message is a peer's write, whatever the provider
	looksAnyway                        // fabric.Attr.Ticks
	forgets                            // fabric.Attr.Forgets
	tcpSockets                         // children would inherit them: see closeOnExec
	udpSockets                         // likewise
	ifNamed                            // fabric.ProviderInfo.Fragile
	ibIfNamed                          // entries with an InfiniBand address: only if their domain is named, whatever the provider
)

// effects describes the effects for docs/providers.md.
var effects = map[effect]string{
	set:              "sets",
	alike:            "only for peers that have set alike",
	fabricIsProvider: "is a provider of its own here, a fabric of",
	perPeer:          "an endpoint for each peer process",
	sameHost:         "offered on one host only",
	slowAtFirst:      "a listener that likes it best has its endpoint send itself what a path check does, at once",
	looksAtAll:       "peers are spread over up to 16 endpoints, 16 on each, before they share one with more",
	oneMapping:       "endpoints of one process that talk to each other are closed together",
	namedRegion:      "regions have names that nobody can guess, are checked and their memory reserved, own ones and peers'; the names are removed once both sides are attached, and are guarded from before they are there until then; an error says how much room there is",
	guarded:          "calls can be got out of the library, after which the endpoint is abandoned",
	lockRegions:      "a lock between changes of regions and all that looks them up",
	slashOwn:         "endpoints of this process are inserted with a slash in front",
	noWriteData:      "no completion data",
	boundUniverse:    "EINVAL of fi_enable is explained by FI_UNIVERSE_SIZE",
	deepQueues:       "deeper queues are asked for, if fewer than 1,024 operations are offered; where that is refused, what is offered will do",
	resolvesFirst:    "a peer's address is resolved before it is inserted",
	needsMonitor:     "not there while FI_MR_CACHE_MONITOR is disabled",
	clamped:          "sizes are cut to what an int holds",
	dataIsWrite:      "a completion with data that is no message is taken for a peer's write",
	looksAnyway:      "polled each 64 ms, though there is a descriptor to wait on",
	forgets:          "a peer that is given up gives its quota back at once",
	tcpSockets:       "TCP sockets that are known by their addresses get close-on-exec, some 20 ms later",
	udpSockets:       "UDP sockets that are known by their addresses get close-on-exec, some 20 ms later",
	ifNamed:          "not even tried, unless it is named",
	ibIfNamed:        "entries with an InfiniBand address are used only where their domain is named",
}

// quirks is the table. docs/providers.md shows it.
var quirks = []quirk{
	// This has to come before the rows that need the library's version: asking for that loads the
	// library.
	{provider: "psm", does: set, arg: "IPATH_NO_BACKTRACE", value: always("1"), note: "1",
		why: "libinfinipath catches six signals when it is loaded, on Go's small stacks", source: "libinfinipath, which psm links"},

	{provider: "cxi", from: "2.0", does: set, arg: monitorVar, value: func(m machine) string { return monitor("kdreg2", m.cxi && !m.hfi1 && m.kdreg2) }, note: "kdreg2 where it is, there is a device and none of opx's",
		why: "without a cache it maps and unmaps memory, by ioctl, in each operation that is not an inject; kdreg2 sees what Go unmaps, in the kernel", source: "cxip_iomm_init, cxip_map"},
	{provider: "cxi", does: set, arg: monitorVar, value: func(m machine) string { return monitor("userfaultfd", m.cxi && m.userfaultfd) }, note: "userfaultfd where it is allowed and there is a device",
		why: "as above, and there is no kdreg2 (or libfabric is older than 2.0)", source: "cxip_iomm_init, cxip_map"},
	{provider: "opx", from: "2.6", does: set, arg: monitorVar, value: func(m machine) string { return monitor("kdreg2", m.hfi1 && m.kdreg2) }, note: "kdreg2 where it is and there is a device",
		why: "fi_domain refuses to work without a monitor; it takes this one from 2.6 on", source: "opx_tid_cache_setup"},
	{provider: "opx", from: "1.18", does: set, arg: monitorVar, value: func(m machine) string { return monitor("userfaultfd", m.hfi1 && m.userfaultfd) }, note: "userfaultfd where it is allowed and there is a device",
		why: "as above, and there is no kdreg2", source: "opx_tid_cache_setup"},
	{provider: "*", does: set, arg: monitorVar, value: always(monitorDisabled), note: "disabled, else",
		why: "the monitors watch libc's mmap and munmap, which Go's runtime does not use: the cache would go stale; memory is registered once, here", source: "ofi_monitors_init, memhooks"},
	{provider: "opx", from: "1.18", does: needsMonitor,
		why: "fi_domain fails with ENOSYS then, and leaves what it has freed on a list", source: "opx_setup_tid_cache, later opx_tid_cache_setup; fi_opx_domain"},

	{provider: "shm", does: sameHost,
		why: "it is memory of this host", source: "smr_getinfo"},
	{provider: "shm", does: perPeer,
		why: "a peer that is killed can leave the endpoint unusable", source: "smr_progress_cmd; from 2.5 on smr_get_inject_buf"},
	{provider: "shm", does: guarded,
		why: "a peer that dies with the lock in shared memory, or sends what is longer than the receive, leaves calls spinning for ever", source: "smr_progress_cmd"},
	{provider: "shm", does: oneMapping,
		why: "two endpoints of one process use one mapping, which goes with the first of them", source: "smr_map_to_region"},
	{provider: "shm", does: namedRegion,
		why: "it takes the process number for a name, which containers that share /dev/shm have twice, and whatever file it finds there; memory of a full /dev/shm raises SIGBUS; what it leaves behind stays; ENODATA is all that tells that /dev/shm is full", source: "smr_getinfo, smr_create, smr_retry_map"},
	{provider: "shm", from: "2.5", does: slashOwn,
		why: "it knows a region of its own process by its name, but forgets where it is: long messages are looked for at a wrong address; it does not know a name with a slash, which shm_open(3) ignores, and maps it as any other", source: "smr_map_to_region"},
	{provider: "shm", from: "2.0", before: "2.4", does: dataIsWrite,
		why: "the completion of a peer's write with data has FI_REMOTE_CQ_DATA, and not FI_REMOTE_WRITE", source: "smr_complete_rx"},

	{provider: "net;*", before: "1.18", does: lockRegions, why: unlocked, source: "xnet_mr_reg, ofi_mr_close, xnet_op_write"},
	{provider: "tcp;*", from: "1.18", before: "1.18.2", does: lockRegions, why: unlocked, source: "xnet_mr_reg, ofi_mr_close, xnet_op_write"},
	{provider: "tcp;ofi_rxm", before: "1.18", does: looksAtAll,
		why: "each look at the queue takes a lock of every peer's connection in turn: with 125 peers a round trip takes twice as long as alone", source: "tcpx_progress"},
	{provider: "tcp;ofi_rxm", does: slowAtFirst,
		why: "it prepares 1,024 buffers to send from, 9 MB, when the first message goes out, which takes 6 to 18 ms", source: "rxm_ep_create_pools, ofi_bufpool_grow"},
	{provider: "tcp;ofi_rxm", does: noWriteData, why: halfWrite, source: "tcpx_ep_flush_all_queues, rxm_handle_comp_error"},
	{provider: "net;ofi_rxm", does: noWriteData, why: halfWrite, source: "xnet_ep_flush_all_queues, rxm_handle_comp_error"},

	{provider: "cxi", does: noWriteData,
		why: "cq_data_size is that of sends: fi_writedata gives ENOSYS, from 2.5 on unless FI_CXI_ENABLE_WRITEDATA is set", source: "cxip_ep_rma_ops"},
	{provider: "opx", does: noWriteData,
		why: "cq_data_size is that of sends: fi_writedata gives ENOSYS before 2.1, and nobody has tried it since", source: "fi_no_rma_writedata"},

	{provider: "net", before: "1.18", does: deepQueues, why: shallow, source: "xnet_default_rx_size, xnet_rdm_rx_attr"},
	{provider: "tcp", from: "1.18", does: deepQueues, why: shallow, source: "xnet_default_rx_size, xnet_rdm_rx_attr"},
	{provider: "net;*", does: tcpSockets, why: leaks, source: "xnet_pep.c, xnet_ep.c, xnet_cm.c, tcpx_ep.c"},
	{provider: "tcp;*", does: tcpSockets, why: leaks, source: "xnet_pep.c, xnet_ep.c, xnet_cm.c, tcpx_ep.c"},
	{provider: "udp;*", does: udpSockets, why: leaks, source: "udpx_ep.c"},
	{provider: "sockets", does: ifNamed,
		why: "where descriptors are short, closing the domain frees twice", source: "sock_dom_close"},
	{provider: "psm3", does: clamped, why: "it reports queues of UINT64_MAX", source: "psmx3_attr.c"},
	{provider: "psm3", does: looksAnyway,
		why: "its descriptor becomes readable when somebody polls who finds something, and not when something arrives", source: "psmx3_cq_enqueue_event"},
	{provider: "efa", from: "2.5", does: looksAnyway,
		why: "what its own protocol has to send, and could not at once, it sends when it is polled next", source: "efa_domain_progress_rdm_peers_and_queues"},
	{provider: "*;ofi_rxm", does: forgets,
		why: "it closes a peer's connection with its address", source: "rxm_av_remove_handler"},
	{provider: "opx", does: clamped, why: "it reports queues of SIZE_MAX", source: "fi_opx_info.c"},
	{provider: "verbs;*", does: ibIfNamed,
		why: "it lists one for every GID of a device, link-local ones of RoCE included, which say nothing of the address that is dialed", source: "vrb_get_sib"},
	{provider: "verbs;*", before: "1.21", does: resolvesFirst,
		why: "the first send to a peer resolves its address and waits for that, for two seconds at most and under the endpoint's lock, each time that it is tried", source: "vrb_create_ep, rxm_send_connect"},

	{provider: "efa-direct", does: fabricIsProvider, arg: "efa",
		why: "it has other rules, and a protocol of its own", source: "fi_efa(7), efa_prov_info.c"},
	{provider: "efa", does: set, arg: "FI_EFA_ENABLE_SHM_TRANSFER", value: always("0"), note: "0",
		why: "it has a shm endpoint inside, with shm's locks and two endpoints in one process, and no descriptor to wait on; shm is used here by itself", source: "efa_prov_info_alloc_for_rdm, efa_domain_open"},

	{provider: "*;ofi_rxm", does: set, arg: "FI_UNIVERSE_SIZE", value: universe, note: "the peers for whom the completion queues of all devices have room; 256 at most where receives are shared",
		why: "it makes a device's completion queue large enough for so many peers: a small device, such as Soft-RoCE, has no such queue, and a large one pins 8 MB for 1,024", source: "rxm_ep_msg_cq_open"},
	{provider: "*;ofi_rxm", does: boundUniverse,
		why: "as above, where the user has set a larger one", source: "rxm_ep_msg_cq_open"},
	{provider: "verbs;ofi_rxm", does: set, arg: "FI_OFI_RXM_USE_SRX", value: sharedReceives, note: "1 where all devices have shared receive queues that are large enough",
		why: "with a receive queue for each peer it ends the process when a connection is closed of which it has not looked at all messages: it posts their receives again, to an endpoint that is gone", source: "rxm_close_conn"},
	{provider: "*;ofi_rxm", does: set, arg: "FI_OFI_RXM_MSG_RX_SIZE", value: receives, note: "1024 where receives are shared, as over tcp they are",
		why: "it posts 4,096 receives, 65 MiB of pinned memory with its own buffers of 16.3 KiB, of which peers can use 1,024: that many frames are granted to them together", source: "rxm_info_to_core, RXM_MSG_SRX_SIZE, rxm_prepost_recv"},
	{provider: "*;ofi_rxm", does: set, arg: "FI_OFI_RXM_BUFFER_SIZE", value: always(strconv.Itoa(rxmBuffer)), note: strconv.Itoa(rxmBuffer) + ", the largest frame and some more",
		why: "each of its buffers has room for 16 KiB, and it clears those of an endpoint, 30 MB, when the first message comes", source: "rxm_buffer_size, rxm_ep_create_pools"},
	{provider: "*;ofi_rxm", does: set, arg: "FI_OFI_RXM_CM_PROGRESS_INTERVAL", value: always(strconv.Itoa(rxmEvents)), note: strconv.Itoa(rxmEvents) + " microseconds",
		why: "it looks for connections that peers ask for every 10 ms at most, however often it is polled: a first dial waits for that", source: "rxm_ep_do_progress"},
	{provider: "*;ofi_rxm", does: alike, arg: "FI_OFI_RXM_BUFFER_SIZE",
		why: "it refuses connections of peers with another eager limit, which then try for ever", source: "rxm_verify_connreq"},
}

const (
	shallow  = "256 are its own choice, which all peers of an endpoint share; it takes up to 65,536, and tells only if it is asked"
	unlocked = "keys are looked up, in fi_cq_read and when receives are posted, while another thread changes the tree that they are in, " +
		"under other locks or none: a key that is not found ends the connection, and what was under way is lost without an error; or it crashes"
	leaks     = "its sockets have no such flag, and children of the process inherit them, those of another user, too"
	halfWrite = "when a connection is closed of which half a write with data has come, it completes that with an error and no context, " +
		"and ofi_rxm reads from there: a crash, at least up to 2.6"
)

const (
	monitorVar      = "FI_MR_CACHE_MONITOR"
	monitorDisabled = "disabled"
)

func always(value string) func(machine) string { return func(machine) string { return value } }

func monitor(name string, there bool) string {
	if there {
		return name
	}
	return ""
}

const (
	// universeDefault is libfabric's own FI_UNIVERSE_SIZE. universeShared is enough if peers share
	// a receive queue: then only sends use entries of the completion queue for each peer, and an
	// endpoint has at most ofi.MaxDepth of them in flight.
	universeDefault = 1024
	universeShared  = 256
	// entriesPerPeer is how many entries of a device's completion queue ofi_rxm wants for
	// each peer: fi_rxm(7), FI_OFI_RXM_MSG_TX_SIZE and FI_OFI_RXM_MSG_RX_SIZE.
	entriesPerPeer = 128 + 128
	// sharedEntries is how many receives ofi_rxm is to post for all peers together: as many as
	// peers may send, see ofi.MaxDepth. It allocates memory for that many at a time.
	sharedEntries = 1024
	// rxmBuffer is the longest message, in bytes, for which ofi_rxm has buffers. The
	// engine's frames fit: framing.HeaderSize + engine.EagerPayload.
	rxmBuffer = 8448
	// rxmEvents is the least time between two looks of ofi_rxm for connections, in microseconds.
	rxmEvents = 100
)

// universe returns the number of peers for which ofi_rxm is to make a completion queue, "" if
// libfabric's own will do.
func universe(m machine) string {
	peers := universeDefault
	if m.srq >= sharedEntries {
		peers = universeShared
	}
	if m.cq > 0 {
		peers = min(peers, max(1, m.cq/entriesPerPeer))
	}
	if peers == universeDefault {
		return ""
	}
	return strconv.Itoa(peers)
}

// sharedReceives makes ofi_rxm receive from all peers on one queue if all devices support one that
// is large enough.
func sharedReceives(m machine) string {
	if m.srq >= sharedEntries {
		return "1"
	}
	return ""
}

// receives returns how many receives that queue holds. A device without one has a queue for each
// peer, of another length.
func receives(m machine) string {
	if m.srq >= 0 && m.srq < sharedEntries {
		return ""
	}
	return strconv.Itoa(sharedEntries)
}

// matches reports whether the row is about a provider.
func (q *quirk) matches(provider string) bool {
	if core, found := strings.CutSuffix(q.provider, ";*"); found {
		return provider == core || strings.HasPrefix(provider, core+";")
	}
	if layer, found := strings.CutPrefix(q.provider, "*"); found {
		return strings.HasSuffix(provider, layer)
	}
	return provider == q.provider
}

// during reports whether the row is about a version of libfabric. If the third number of that is
// not known, it is enough that the row is about some version with the first two.
func (q *quirk) during(version string) bool {
	known := strings.Count(version, ".") + 1
	return (q.from == "" || compareVersions(version, q.from, known) >= 0) &&
		(q.before == "" || compareVersions(version, q.before, 3) < 0)
}

// compareVersions compares that many numbers of two versions. Missing ones are 0.
func compareVersions(a, b string, numbers int) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	number := func(list []string, i int) int {
		if i >= len(list) {
			return 0
		}
		n, _ := strconv.Atoi(list[i]) // "1rc2" counts as 0: close enough
		return n
	}
	for i := range numbers {
		if c := cmp.Compare(number(as, i), number(bs, i)); c != 0 {
			return c
		}
	}
	return 0
}

// find returns the row of an effect on a provider for the library in use, nil if there is none.
func find(provider string, does effect) *quirk {
	for i := range quirks {
		if q := &quirks[i]; q.does == does && q.matches(provider) && q.during(ofi.LibraryVersion()) {
			return q
		}
	}
	return nil
}

func has(provider string, does effect) bool { return find(provider, does) != nil }

// options returns what the binding is told about a provider.
func options(provider string) ofi.Options {
	o := ofi.Options{
		Guarded:     has(provider, guarded),
		LockRegions: has(provider, lockRegions),
	}
	if has(provider, slashOwn) {
		o.SlashOwn = processBase()
	}
	return o
}

// providerOf returns our name for the provider of an entry.
func providerOf(info ofi.Info) string { return nameOf(info.Provider(), info.Fabric()) }

func nameOf(provider, fabric string) string {
	if q := find(fabric, fabricIsProvider); q != nil && q.arg == provider {
		return q.provider
	}
	return provider
}

// hintsFor is the inverse of providerOf.
func hintsFor(provider string) ofi.Hints {
	if q := find(provider, fabricIsProvider); q != nil {
		return ofi.Hints{Provider: q.arg, Fabric: q.provider}
	}
	return ofi.Hints{Provider: provider}
}
