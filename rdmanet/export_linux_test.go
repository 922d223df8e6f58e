package rdmanet

// OnlyNetns returns the network namespace of all threads, 0 if one of them may leave it.
func OnlyNetns() uint64 { return uint64(onlyNetns()) }
