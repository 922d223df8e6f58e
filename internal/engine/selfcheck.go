package engine

import (
	"context"
	"errors"
)

// errSelf ends the peers of a SelfCheck.
var errSelf = errors.New("the endpoint has met itself")

// SelfCheck has the endpoint do a path check with itself, for no longer than ctx lasts. It is for
// providers where the first messages of an endpoint take long: later ones then do not.
func (e *Endpoint) SelfCheck(ctx context.Context) error {
	dials, err := e.NewPeer(PeerConfig{itself: true})
	if err != nil {
		return err
	}
	defer dials.Lost(errSelf)
	listens, err := e.NewPeer(PeerConfig{Unproven: true, itself: true})
	if err != nil {
		return err
	}
	defer listens.Lost(errSelf)
	if err := errors.Join(listens.Connect(ctx, dials.Local()), dials.Connect(ctx, listens.Local())); err != nil {
		return err
	}
	return dials.Check(ctx)
}
