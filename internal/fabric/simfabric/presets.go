package simfabric

import "github.com/seed202c38ff/fabricnet/internal/fabric"

// Preset is a personality that tests run over.
type Preset struct {
	Name string // for the names of its tests
	Personality
	// Hardware: it needs a device that we do not have. TestRules in the engine says which rules it
	// has.
	Hardware bool
	// Awkward: tests of conns delay, reorder and refuse operations.
	Awkward bool
	// Suite: rdmanet's tests run over it, too. Inserts: in these, inserting an address takes a
	// while.
	Suite, Inserts bool
	// Weight is how often the engine's model draws it, relative to others.
	Weight int
}

// Presets lists all personalities. A new one is listed here, and in the engine's TestRules
// if it is of hardware.
func Presets() []Preset {
	return []Preset{
		{Name: "cqdata", Personality: RuleCQData(), Weight: 4},
		{Name: "saw", Personality: RuleSendAfterWrite(), Weight: 1},
		{Name: "deliver", Personality: RuleDeliveryComplete(), Weight: 2},
		{Name: "shm", Personality: Shm(), Suite: true, Weight: 2},
		{Name: "tcp", Personality: TCP(), Suite: true, Weight: 1},
		{Name: "net", Personality: Net()},
		{Name: "efa", Personality: EFA(), Hardware: true, Suite: true, Inserts: true, Weight: 1},
		{Name: "efa-direct", Personality: EFADirect(), Hardware: true, Awkward: true, Suite: true, Inserts: true, Weight: 1},
		{Name: "verbs", Personality: Verbs(), Hardware: true, Suite: true, Weight: 1},
		{Name: "cxi", Personality: CXI(), Hardware: true, Awkward: true, Suite: true, Weight: 1},
		{Name: "opx", Personality: OPX(), Hardware: true, Awkward: true, Suite: true, Weight: 1},
		{Name: "psm3", Personality: PSM3(), Hardware: true, Awkward: true, Suite: true, Weight: 1},
		{Name: "no large data", Awkward: true, Weight: 12}, // windows grow only without rings
	}
}

const allOrders = fabric.SendAfterSend | fabric.SendAfterWrite | fabric.WriteAfterWrite

// Shm is like fi_shm(7) when the RMA orders are requested.
func Shm() Personality {
	return Personality{
		Provider:         "shm",
		SameHost:         true,
		InjectSize:       4096,
		Order:            allOrders,
		DeliveryComplete: true,
		TxDepth:          1024,
		RxDepth:          1024,
		PerPeer:          true,
		NoWait:           true,
	}
}

// TCP is like the tcp provider under fi_rxm(7), whose completion data must not be used: see
// cqDataSize in ofifabric. It looks up a write's target when the header arrives, and takes nothing
// from its socket unless it is polled (prov/tcp: xnet_handle_write).
func TCP() Personality {
	return Personality{
		Provider:         "tcp;ofi_rxm",
		IPNames:          true,
		InjectSize:       64,
		Order:            allOrders,
		DeliveryComplete: true,
		WeakCompletion:   true,
		LateWrites:       true,
		Socket:           256 << 10,
		Forgets:          true,
	}
}

// Net is like the net provider of libfabric 1.17.
func Net() Personality {
	p := TCP()
	p.Provider, p.InjectSize, p.CQDataSize, p.Forgets = "net", 128, 8, false
	return p
}

// Silent is like a fabric on which a peer's write with data brings no completion, as shm of
// libfabric 2.0 to 2.3 did to programs that went by FI_REMOTE_WRITE (smr_complete_rx).
func Silent() Personality {
	p := Net()
	p.Provider, p.Unflagged = "verbs;ofi_rxm", true
	return p
}

// Verbs is like the verbs provider under fi_rxm(7) on Soft-RoCE or a small NIC.
func Verbs() Personality {
	return Personality{
		Provider:   "verbs;ofi_rxm",
		IPNames:    true,
		InjectSize: 192,
		CQDataSize: 4,
		MaxMsgSize: 8 << 20,
		Order:      allOrders,
		LocalMR:    true,
		VirtAddr:   true,
		Forgets:    true,
		TxDepth:    64,
		RxDepth:    64,
	}
}

// The personalities below are taken from the sources that each names, of libfabric 1.17 to 2.6. All
// of them make progress only when polled (FI_PROGRESS_MANUAL), and none asks for anything that
// package ofi does not provide. What they ask for is a struct fi_context2 in every operation
// (FI_CONTEXT of psm3, FI_CONTEXT2 of opx and efa-direct), memory that is mapped before it is
// registered (FI_MR_ALLOCATED), and keys that the provider chooses (FI_MR_PROV_KEY).

// EFA is like fi_efa(7), fabric efa. It orders nothing but sends, which software puts in order. It
// has no descriptor to wait on while it uses shm for its own host (before 2.5 it has none at all).
// Inserting an address calls into the kernel. If the device has no writes, packets stand in for
// them, and their completion says only that they were sent (prov/efa/src:
// efa_prov_info_alloc_for_rdm, efa_ah_alloc, EFA_RDM_EAGER_RTW_PKT).
func EFA() Personality {
	return Personality{
		Provider:         "efa",
		InjectSize:       1024,
		CQDataSize:       4,
		Order:            fabric.SendAfterSend,
		DeliveryComplete: true,
		LocalMR:          true,
		VirtAddr:         true,
		NoWait:           true,
		WeakCompletion:   true,
	}
}

// EFADirect is like fi_efa(7), fabric efa-direct: what the device does and no more. Nothing is
// ordered. A send has to fit into one packet of about 8 KiB, though fi_info's max_msg_size is that
// of writes (efa_prov_info_set_ep_attr). Injects have to fit into a work request.
func EFADirect() Personality {
	p := EFA()
	p.Provider, p.Order, p.InjectSize = "efa-direct", 0, 32
	p.MaxMsgSize, p.MaxRMASize = 8<<10, 1<<30
	p.WeakCompletion = false
	return p
}

// CXI is like fi_cxi(7): regions are bound to the endpoint, a send may overtake the write before
// it, and fi_writedata is missing or switched off (cq_data_size is 8 all the same, for sends;
// prov/cxi: CXIP_MSG_ORDER, cxip_ep_rma_ops, cxip_env.enable_writedata).
func CXI() Personality {
	return Personality{
		Provider:         "cxi",
		InjectSize:       192,
		MaxMsgSize:       1<<32 - 1,
		Order:            fabric.SendAfterSend | fabric.WriteAfterWrite,
		DeliveryComplete: true,
		WeakCompletion:   true,
		EndpointMR:       true,
	}
}

// OPX is like fi_opx(7) before 2.1: it orders nothing but atomics, has no fi_writedata
// (cq_data_size is 4 all the same), and has nothing to wait on (prov/opx: FI_OPX_DEFAULT_MSG_ORDER,
// fi_no_rma_writedata, FI_OPX_HFI1_PACKET_IMM, fi_opx_control_cq).
func OPX() Personality {
	return Personality{
		Provider:         "opx",
		InjectSize:       16,
		DeliveryComplete: true,
		WeakCompletion:   true,
		NoWait:           true,
	}
}

// PSM3 is like fi_psm3(7): a send may overtake the write before it, and the completion of a write
// means that it has landed only if that was asked for (prov/psm3: PSMX3_MSG_ORDER,
// PSMX3_AM_FORCE_ACK; psmx3_getinfo has the completion data). Writes are in order up to 4 KiB
// (PSMX3_RMA_ORDER_SIZE).
func PSM3() Personality {
	return Personality{
		Provider:         "psm3",
		InjectSize:       64,
		CQDataSize:       4,
		MaxMsgSize:       1<<32 - 1<<12,
		Order:            fabric.SendAfterSend,
		DeliveryComplete: true,
		WeakCompletion:   true,
	}
}

// RuleCQData offers nothing but completion data to tell that a write has landed.
func RuleCQData() Personality {
	return Personality{CQDataSize: 4, LocalMR: true, VirtAddr: true}
}

// RuleSendAfterWrite offers nothing but that order to tell that a write has landed. Completions say
// nothing.
func RuleSendAfterWrite() Personality {
	return Personality{Order: fabric.SendAfterWrite, InjectSize: 64, WeakCompletion: true}
}

// RuleDeliveryComplete offers nothing but completions that mean delivery, if that is asked for, to
// tell that a write has landed.
func RuleDeliveryComplete() Personality {
	return Personality{DeliveryComplete: true, InjectSize: 64, LocalMR: true, WeakCompletion: true}
}
