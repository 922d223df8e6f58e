package main

// A carriage is a transport and its provider.
type carriage struct{ transport, provider string }

var (
	overTCP      = carriage{transport: transportTCP}
	overUnix     = carriage{transport: transportUnix}
	overShm      = carriage{transportRDMA, "shm"}
	overFar      = carriage{transportFar, "shm"} // without memory that both sides map
	overTCPRxm   = carriage{transportRDMA, "tcp;ofi_rxm"}
	overNet      = carriage{transportRDMA, "net"}
	overVerbs    = carriage{transportRDMA, "verbs;ofi_rxm"}
	overRsockets = carriage{transport: transportRsockets}
)

// over returns the work c on a transport.
func (c cell) over(v carriage) cell {
	c.Transport, c.Provider = v.transport, v.provider
	return c
}

// onBusyHost returns the work c beside a program that computes on every CPU.
func (c cell) onBusyHost() cell {
	c.Load = true
	return c
}

func (v carriage) label() string { return cell{Transport: v.transport, Provider: v.provider}.label() }
