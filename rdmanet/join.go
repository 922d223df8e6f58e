package rdmanet

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

// A pair of processes shares one control connection, whichever of the one's listeners the other
// dials. The first handshake of a dial to a further listener finds out that it is of a process
// that was met before, and has that listener taken into the existing link instead of making
// another one. Authorize and TLS of that listener have let the dialer in by then.

// pairKey is what dials must have in common to be able to share a link to one process. The
// addresses are those of the control connection: by them the two sides choose devices.
type pairKey struct {
	local, remote netip.Addr
	alive         net.KeepAliveConfig
	dialKey
}

// approach is a handshake of the dialling side that is under way. What changes in it is guarded
// by links.mu.
type approach struct {
	key     pairKey
	process [16]byte      // that it has met, and makes a link to
	done    chan struct{} // closed when it has ended: what it has made can be joined
}

// approach begins a handshake, until leave.
func (ls *links) approach(key pairKey) *approach {
	a := &approach{key: key, done: make(chan struct{})}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.approaches[a] = struct{}{}
	return a
}

func (ls *links) leave(a *approach) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.approaches, a)
	close(a.done)
}

// mayJoin reports whether a may find a link to join. If not, asking would cost a round trip for
// nothing. Two handshakes that begin at the same moment may make two links.
func (ls *links) mayJoin(a *approach) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for other := range ls.approaches {
		if other != a && other.key == a.key {
			return true
		}
	}
	for l := range ls.all {
		if l.pair == a.key && !l.dead {
			return true
		}
	}
	return false
}

// partner returns a link for a to join, with the caller counted as a user. It waits for another
// handshake with the same process, for half of its time. It returns nil if a is to make a link.
func (ls *links) partner(ctx context.Context, a *approach, peer *bootstrap.Peer) *link {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(bootstrap.DefaultTimeout)
	}
	patience := time.NewTimer(time.Until(deadline) / 2)
	defer patience.Stop()
	for patient := true; ; {
		l, other := ls.find(a, peer, patient)
		if other == nil {
			return l
		}
		select {
		case <-other.done:
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			return nil
		}
	}
}

// find returns a link to join or, if the caller is patient, another handshake to wait for.
// Otherwise a is to make a link.
func (ls *links) find(a *approach, peer *bootstrap.Peer, patient bool) (*link, *approach) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l := range ls.all {
		if l.pair == a.key && !l.dead && l.leadsTo(peer) {
			ls.useLocked(l, 1)
			return l, nil
		}
	}
	for other := range ls.approaches {
		if patient && other.key == a.key && other.process == peer.Hello.Process {
			return nil, other
		}
	}
	a.process = peer.Hello.Process
	return nil, nil
}

// leadsTo reports whether the link's peer is the same process with the same identity, and has as
// much to choose from.
func (l *link) leadsTo(peer *bootstrap.Peer) bool {
	known := l.session.Load().Remote()
	return known.Process == peer.Hello.Process && slices.Equal(known.Offers, peer.Hello.Offers) && sameIdentity(l.tls, peer.TLS)
}

// makes notes that a makes a link to that process.
func (ls *links) makes(a *approach, process [16]byte) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	a.process = process
}

// made takes in a link that a handshake has made, with the caller counted as a user. Others can
// join it if a is not nil.
func (ls *links) made(a *approach, l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if a != nil {
		l.pair = a.key
	}
	ls.useLocked(l, 1)
}

// joining is what the dialling side's handshake keeps of its attempt to join.
type joining struct {
	approach *approach // nil if there is to be no other link
	asks     bool      // its hello says that it asks
	link     *link     // for which it asks, and of which the binder is a user
	listener uint32    // that it has met
	exported []byte    // see framing.JoinProof
}

// Met implements bootstrap.Binder.
func (b *binder) Met(ctx context.Context, peer *bootstrap.Peer) *framing.Join {
	j := &b.joining
	if j.approach == nil {
		return nil
	}
	exported, err := exportedKey(peer.TLS)
	if err != nil || !j.asks {
		b.t.links.makes(j.approach, peer.Hello.Process)
		return nil
	}
	j.listener, j.exported = peer.Hello.Listener, exported
	if j.link = b.t.links.partner(ctx, j.approach, peer); j.link == nil {
		return nil
	}
	return j.link.names(j.listener, j.exported)
}

// Joined implements bootstrap.Binder.
func (b *binder) Joined(answer *framing.Join) error {
	j := &b.joining
	if !j.link.named(answer, j.listener, j.exported) {
		return errors.New("the listener grants what it does not have")
	}
	return nil
}

// Join implements bootstrap.Binder. The two sides must have met in the same way as they do now: at
// the same addresses but for the ports, since these decide on devices, with the same settings, and
// with the same identities, since ConnInfo.TLS is that of the link.
func (b *binder) Join(ctx context.Context, peer *bootstrap.Peer, ask *framing.Join) (*framing.Join, error) {
	exported, err := exportedKey(peer.TLS)
	if err != nil {
		return nil, nil
	}
	m := &meeting{listener: b.listener, newcomer: b.newcomer, local: newAddr(b.nc.LocalAddr())}
	host := addrPort(b.nc.RemoteAddr()).Addr()
	for _, l := range b.t.links.list() {
		switch {
		case !l.accepted() || !l.named(ask, m.listener.number, exported):
			continue
		case addrPort(l.remote).Addr() != host || !l.first.alike(m) || !sameIdentity(l.tls, peer.TLS):
			return nil, nil
		}
		select {
		case <-l.settled: // its Confirm may be slower than this
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if joined, err := b.t.links.join(l, m); err != nil {
			return nil, err
		} else if joined {
			return l.names(m.listener.number, exported), nil
		}
	}
	return nil, nil
}

// meeting is where a peer has met a listener, to which it may open conns from then on.
type meeting struct {
	listener *listener
	newcomer *newcomer    // in the listener's admission
	local    *net.TCPAddr // of the connection
}

// alike reports whether a handshake in the one meeting would come to the same as in the other.
func (m *meeting) alike(o *meeting) bool {
	a, b := m.listener, o.listener
	return addrPort(m.local).Addr() == addrPort(o.local).Addr() && a.netns == b.netns && a.cfg.KeepAliveConfig == b.cfg.KeepAliveConfig &&
		a.rule.key() == b.rule.key() &&
		slices.Equal(wished(a.cfg.Providers), wished(b.cfg.Providers))
}

// join adds a meeting to a link. It reports false if the link or the listener has ended, and
// fails if the listener may have no further peer.
func (ls *links) join(l *link, m *meeting) (bool, error) {
	if l.metAt(m.listener.number) == nil {
		if err := m.listener.admission.join(m.newcomer, l.peer); err != nil {
			return false, err
		}
	}
	ls.mu.Lock()
	ended := l.dead || m.listener.ctx.Err() != nil
	if !ended && l.met[m.listener.number] == nil {
		l.met[m.listener.number] = m
	}
	kept := l.met[m.listener.number] == m
	ls.mu.Unlock()
	if !kept {
		m.listener.admission.gone(m.newcomer, l.peer)
	}
	return !ended, nil
}

// metAt returns where the peer has met the listener of that number, nil if it has not or the
// listener is closed.
func (l *link) metAt(listener uint32) *meeting {
	l.t.links.mu.Lock()
	defer l.t.links.mu.Unlock()
	return l.met[listener]
}

// part ends all meetings of peers with a listener that is closed.
func (ls *links) part(listener uint32) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l := range ls.all {
		delete(l.met, listener)
	}
}

// names returns a Join for the link's peer.
func (l *link) names(listener uint32, exported []byte) *framing.Join {
	return &framing.Join{Peer: l.theirs.peer, Proof: framing.JoinProof(l.theirs.token, listener, exported)}
}

// named reports whether a Join from the peer is for l.
func (l *link) named(j *framing.Join, listener uint32, exported []byte) bool {
	own := l.peer.Local()
	proof := framing.JoinProof(own.Token, listener, exported)
	return hmac.Equal(proof[:], j.Proof[:]) && j.Peer == own.Peer
}

// exportedKey returns what ties the proof of a Join to the connection, which is nothing without
// TLS. It fails for old versions of TLS.
func exportedKey(state *tls.ConnectionState) ([]byte, error) {
	if state == nil {
		return nil, nil
	}
	return state.ExportKeyingMaterial(framing.JoinLabel, nil, framing.JoinKeySize)
}

// sameIdentity reports whether two handshakes of TLS have come to the same: both sides may rely on
// the one as on the other.
func sameIdentity(a, b *tls.ConnectionState) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Version == b.Version && a.CipherSuite == b.CipherSuite && a.CurveID == b.CurveID && a.ServerName == b.ServerName &&
		slices.EqualFunc(a.PeerCertificates, b.PeerCertificates, (*x509.Certificate).Equal) &&
		slices.EqualFunc(a.VerifiedChains, b.VerifiedChains, func(c, d []*x509.Certificate) bool {
			return slices.EqualFunc(c, d, (*x509.Certificate).Equal)
		})
}
