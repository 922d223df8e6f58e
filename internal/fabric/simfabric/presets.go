package simfabric

import "github.com/seed202c38ff/fabricnet/internal/fabric"

const allOrders = fabric.SendAfterSend | fabric.SendAfterWrite | fabric.WriteAfterWrite

// Shm is like fi_shm(7) with the RMA orders asked for.
func Shm() Personality {
	return Personality{
		Provider:         "shm",
		SameHost:         true,
		InjectSize:       4096,
		CQDataSize:       8,
		Order:            allOrders,
		DeliveryComplete: true,
		TxDepth:          1024,
		RxDepth:          1024,
		PerPeer:          true,
		NoWait:           true,
	}
}

// TCP is like the tcp provider under fi_rxm(7).
func TCP() Personality {
	return Personality{
		Provider:         "tcp;ofi_rxm",
		InjectSize:       64,
		CQDataSize:       8,
		Order:            allOrders,
		DeliveryComplete: true,
		WeakCompletion:   true,
	}
}

// Net is like the net provider of libfabric 1.17.
func Net() Personality {
	p := TCP()
	p.Provider, p.InjectSize = "net", 128
	return p
}

// Verbs is like the verbs provider under fi_rxm(7).
func Verbs() Personality {
	return Personality{
		Provider:   "verbs;ofi_rxm",
		InjectSize: 192,
		CQDataSize: 4,
		MaxMsgSize: 8 << 20,
		Order:      allOrders,
		LocalMR:    true,
		VirtAddr:   true,
	}
}

// EFA is like fi_efa(7): it orders nothing but sends, and cannot be waited on.
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
	}
}

// RuleCQData offers nothing but completion data to tell that a write landed.
func RuleCQData() Personality {
	return Personality{CQDataSize: 4, LocalMR: true, VirtAddr: true}
}

// RuleSendAfterWrite offers nothing but that order to tell that a write landed.
// Completions say nothing.
func RuleSendAfterWrite() Personality {
	return Personality{Order: fabric.SendAfterWrite, InjectSize: 64, WeakCompletion: true}
}

// RuleDeliveryComplete offers nothing but completions that mean delivery, if
// they are asked to, to tell that a write landed.
func RuleDeliveryComplete() Personality {
	return Personality{DeliveryComplete: true, InjectSize: 64, LocalMR: true, WeakCompletion: true}
}
