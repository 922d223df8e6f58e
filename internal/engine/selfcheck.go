package engine

import (
	"context"
	"errors"
)

// errSelf ends the peers of a SelfCheck, which nobody has lost.
var errSelf = errors.New("the endpoint has met itself")

// SelfCheck has the endpoint do a path check with itself. It takes as long as ctx lasts at most,
// and serves where the first messages of an endpoint take long: later ones then do not.
func (e *Endpoint) SelfCheck(ctx context.Context) error {
	const peers = 2
	gone := make(chan struct{}, peers)
	cfg := PeerConfig{Lost: func(error, int) {}, Gone: func() { gone <- struct{}{} }, NoMemory: func() {}}
	var ends [peers]*Peer
	var err error
	defer func() {
		for _, p := range ends {
			if p != nil {
				p.Lost(errSelf)
				<-gone
			}
		}
	}()
	for i := range ends {
		cfg.Unproven = i > 0 // the one that answers
		if ends[i], err = e.NewPeer(cfg); err != nil {
			return err
		}
	}
	for i, p := range ends {
		if err := p.Connect(ctx, ends[1-i].Local()); err != nil {
			return err
		}
	}
	return ends[0].Check(ctx)
}
