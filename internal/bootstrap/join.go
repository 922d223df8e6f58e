package bootstrap

import (
	"context"
	"errors"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Two processes that form a pair already need no other one for a further listener, only the
// listening side's consent, which it gives on a connection to that listener (SPEC.md section 9.8).

// dialJoin asks for the listener to be taken into a pair, if the binder knows one. A nil outcome
// without an error means that there is to be a new pair.
func (hs *handshake) dialJoin(ctx context.Context) (*outcome, error) {
	ask := hs.binder.Met(ctx, &hs.peer)
	if !hs.hello.Joins {
		return nil, nil
	}
	if ask == nil {
		return nil, hs.write(framing.KindDecline, &framing.Decline{Text: "a new pair"})
	}
	if err := hs.write(framing.KindJoin, ask); err != nil {
		return nil, err
	}
	body, declined, err := hs.answer(framing.KindJoin)
	if declined != nil || err != nil {
		return nil, err
	}
	var answer framing.Join
	if err := framing.DecodeBody(body, &answer); err != nil {
		return nil, malformed(err)
	}
	if err := hs.binder.Joined(&answer); err != nil {
		return nil, malformed(err)
	}
	return new(outcome), nil
}

var errUnjoined = errors.New("there is no such pair, or it is of another identity")

// acceptJoin takes the listener into the pair that the dialling side names, if it names one. A
// nil outcome without an error means that there is to be a new pair.
func (hs *handshake) acceptJoin(ctx context.Context) (*outcome, error) {
	if !hs.remote.Joins {
		return nil, nil
	}
	kind, body, err := hs.expect(framing.KindJoin, framing.KindDecline)
	switch {
	case err != nil:
		return nil, err
	case kind == framing.KindDecline:
		_, err := declineOf(body)
		return nil, err
	}
	var ask framing.Join
	if err := framing.DecodeBody(body, &ask); err != nil {
		return nil, malformed(err)
	}
	answer, err := hs.binder.Join(ctx, &hs.peer, &ask)
	switch {
	case err != nil:
		return nil, err
	case answer == nil:
		return nil, hs.write(framing.KindDecline, &framing.Decline{Text: errUnjoined.Error()})
	}
	return new(outcome), hs.write(framing.KindJoin, answer)
}
