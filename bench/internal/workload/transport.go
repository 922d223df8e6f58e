package workload

// A Transport is the name of a transport, and its provider if it is rdma.
type Transport struct{ Name, Provider string }

// The transports that are often measured.
var (
	TCP      = Transport{Name: TransportTCP}
	Unix     = Transport{Name: TransportUnix}
	Shm      = Transport{TransportRDMA, "shm"}
	TCPRxm   = Transport{TransportRDMA, "tcp;ofi_rxm"}
	Net      = Transport{TransportRDMA, "net"}
	Verbs    = Transport{TransportRDMA, "verbs;ofi_rxm"}
	Rsockets = Transport{Name: TransportRsockets}
)

// Over returns the work c on a transport.
func (c Case) Over(v Transport) Case {
	c.Transport, c.Provider = v.Name, v.Provider
	return c
}

// OnBusyHost returns the work c beside a program that computes on every CPU.
func (c Case) OnBusyHost() Case {
	c.Load = true
	return c
}

// Label is a Case's.
func (v Transport) Label() string { return Case{Transport: v.Name, Provider: v.Provider}.Label() }
