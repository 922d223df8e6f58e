//go:build linux && cgo

package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["joiner"] = tryToJoin }

// joiner is the dialling side of a handshake that asks for a further listener of a pair, and
// wants nothing else.
type joiner struct {
	*hostile
	ask      func(listener uint32) framing.Join
	listener uint32
	granted  bool
}

func (j *joiner) Hello() framing.Hello {
	h := j.hostile.Hello()
	h.Joins = true
	return h
}

func (j *joiner) Met(_ context.Context, peer *bootstrap.Peer) *framing.Join {
	j.listener = peer.Hello.Listener
	ask := j.ask(j.listener)
	return &ask
}

func (j *joiner) Joined(*framing.Join) error {
	j.granted = true
	return nil
}

var errNoPair = errors.New("no new pair is wanted")

func (j *joiner) Prepare(context.Context, framing.Offer, *bootstrap.Peer, netip.Addr, *bootstrap.Page) (bootstrap.Binding, error) {
	return nil, errNoPair
}

// tryToJoin makes two pairs with the first of the listeners at addrs, asks for the second and third
// in several ways, and prints whether that was granted, and whether the listeners can be reached over
// the pairs then.
func tryToJoin(provider, addrs string) error {
	list := strings.Split(addrs, ",")
	h, err := intrude(provider, list[0], 0, nil)
	if err != nil {
		return err
	}
	defer h.leave()
	other, err := intrude(provider, list[0], 0, nil)
	if err != nil {
		return err
	}
	defer other.leave()
	first, stream := h.number, uint32(1)
	proof := func(token [16]byte) func(uint32) framing.Join {
		return func(listener uint32) framing.Join {
			return framing.Join{Peer: h.remote.Peer, Proof: framing.JoinProof(token, listener, nil)}
		}
	}
	right := proof(h.remote.Token)
	for _, try := range []struct {
		name, addr string
		ask        func(listener uint32) framing.Join
	}{
		{"a guessed token", list[1], proof([16]byte{1})},
		{"the wrong side's token", list[1], proof(h.local.Token)},
		{"another pair's token", list[1], proof(other.remote.Token)},
		{"another pair's number", list[1], func(listener uint32) framing.Join {
			return framing.Join{Peer: other.remote.Peer, Proof: right(listener).Proof}
		}},
		{"the proof for another listener", list[1], func(uint32) framing.Join { return right(first) }},
		{"a proof for another connection", list[1], func(listener uint32) framing.Join {
			return framing.Join{Peer: h.remote.Peer, Proof: framing.JoinProof(h.remote.Token, listener, make([]byte, framing.JoinKeySize))}
		}},
		{"the right proof, unauthorized", list[2], right},
		{"the right proof", list[1], right},
	} {
		j := &joiner{hostile: h, ask: try.ask}
		if err := j.dial(try.addr); !j.granted && !errors.Is(err, bootstrap.ErrUnauthorized) && !errors.Is(err, bootstrap.ErrNoProvider) {
			return fmt.Errorf("%s: %w", try.name, err)
		}
		number := j.listener
		if number == 0 { // it was not let in, and does not know the number
			number = first + 2
		}
		var reached []bool
		for _, h := range []*hostile{h, other} {
			h.number = number
			ok, err := h.reaches(stream)
			if err != nil {
				return fmt.Errorf("%s: %w", try.name, err)
			}
			reached = append(reached, ok)
			stream++
		}
		fmt.Println(try.name+":", j.granted, reached)
	}
	return nil
}

// dial shakes hands with the listener at addr.
func (j *joiner) dial(addr string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	_, _, err = bootstrap.Dial(ctx, nc, bootstrap.Config{}, j)
	return err
}

// reaches opens a stream, and reports whether the listener takes it.
func (h *hostile) reaches(stream uint32) (bool, error) {
	if err := h.send(h.opening(stream, h.number)); err != nil {
		return false, err
	}
	for begin := time.Now(); time.Since(begin) < rdmatest.Patience/2; h.poll() {
		for _, f := range h.got {
			if f.Stream == stream && (f.Type == framing.TypeAccept || f.Type == framing.TypeReset) {
				return f.Type == framing.TypeAccept, nil
			}
		}
	}
	return false, errors.New("the listener does not answer")
}

// TestForgedJoins: a peer reaches a further listener of the process only if it proves that it is one
// side of the pair, and that listener lets it in. Nobody can have another's pair joined.
func TestForgedJoins(t *testing.T) {
	for _, provider := range testenv.Shared() { // over shm, all pairs have the same number
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
			first, second := rdmatest.Listen(t, lc), rdmatest.Listen(t, lc)
			lc.Authorize = func(context.Context, rdmanet.PeerInfo) error { return errors.New("not you") }
			third := rdmatest.Listen(t, lc)
			addrs := strings.Join([]string{first.Addr().String(), second.Addr().String(), third.Addr().String()}, ",")
			cmd := rdmatest.Process(t, "joiner", provider, addrs)
			_, stdout := rdmatest.Start(t, cmd)
			out, err := io.ReadAll(stdout)
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.Len(t, lines, 8)
			for _, line := range lines[:7] {
				assert.Contains(t, line, ": false [false false]")
			}
			assert.Equal(t, "the right proof: true [true false]", lines[7])
		})
	}
}
