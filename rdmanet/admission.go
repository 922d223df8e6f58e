package rdmanet

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits on what a listener lets go on at a time. A connection starts out unauthorized, and
// moves down this table:
//
//	state         what it has shown          what it costs          how many there may be     what makes room for others
//	unauthorized  nothing                    a socket, a goroutine  maxHandshakes, including  the oldest leaves
//	                                                                authorized ones
//	authorized    Authorize has let it in    the same               as above                  the oldest leaves, if none is unauthorized
//	unproven      it has waited its turn     a place on a fabric    maxUnproven, and          the host with most of them loses its oldest, after
//	                                         endpoint               maxBeginning at first     provingTime, or heardTime once that was heard or
//	                                                                                          its host has peers, unless the host is greedy
//	admitted      its path check succeeded   its share of that      MaxPeers, MaxPeersPerHost one without conns leaves: see link.letGo
//	left          (it is over)
//
// So connections that complete the handshake, but do not reach this side over the fabric, hold
// 32 places for half a second per provider, however many they are. A free place goes to the
// host that has the fewest; among such hosts, first to those that have had a peer, and last to
// those from which others were sent away. More than 50 such connections a second, from as many
// hosts and for a long time, still make other dials wait: then a packet filter has to help.
//
// Many processes that start at once on one host are as slow as attackers, since they share its
// processors. So not all of them begin at the same time, and they get more time once one of
// them has become a peer. One that has to leave is told so, and comes again. What they need
// over shared memory is opened while they wait, if there is plenty of room.
const (
	maxHandshakes = 1024
	maxUnproven   = 32
	// maxAsking bounds how many calls of Authorize go on at a time, including those whose
	// handshake is over.
	maxAsking = 64
	// provingTime is the longest time, on a busy host, until the first part of a path check
	// arrives. heardTime is how long the rest may take.
	provingTime = 500 * time.Millisecond
	heardTime   = 5 * time.Second
	// maxBeginning is how many may be in the first beginningTime of proving themselves: during
	// that time, each takes a processor most of the time.
	maxBeginning  = 8
	beginningTime = 100 * time.Millisecond
	// maxSent is for how many hosts admission remembers, at most, whether they get through.
	maxSent = 1024
	// leastIdle is how long a peer must have been without conns before it is let go.
	leastIdle = time.Second
)

var (
	// errTooManyHandshakes ends a handshake that newer ones have displaced.
	errTooManyHandshakes = errors.New("too many handshakes at a time, this one was among the oldest")
	// errIgnored ends one whose Open came when there was no place for it; see newcomer.ignored.
	errIgnored = fmt.Errorf("%w: there was no place when this one wanted it", ErrBusy)
	// errUnproven ends one whose place others need.
	errUnproven = fmt.Errorf("%w: too many handshakes at a time, and over the fabric nothing came for this one", ErrBusy)
)

type admissionState uint8

const (
	unauthorized admissionState = iota
	authorized
	unproven
	admitted
	left
)

// admission keeps track of the handshakes and peers of one listener.
type admission struct {
	slots            chan struct{} // one for each handshake
	asking           chan struct{} // one for each call of Authorize that has not returned
	most, mostOfHost int           // limits on peers

	mu sync.Mutex // a leaf; guards what follows, and all newcomers
	// Oldest first, of *newcomer.
	unauthorized, authorized, unproven list.List
	waiting                            []*newcomer // authorized ones that want a place, the longest waiting first
	evicted                            int         // how many of unproven are about to leave
	timer                              *time.Timer // looks again for places to grant; nil until it is needed
	places, peers                      map[netip.Prefix]int
	sent                               map[netip.Prefix]int // how many were sent away to come again, by host; -1 once a peer of the host got in
	total                              int                  // peers
}

// prover is a peer. Heard reports whether anything has come from it over the fabric.
type prover interface{ Heard() bool }

// newcomer is one connection to a listener.
type newcomer struct {
	host    netip.Prefix
	cancel  context.CancelCauseFunc // of the handshake
	state   admissionState
	at      *list.Element // in the list of its state; nil if it was told to leave
	placed  chan struct{} // closed when it gets a place; made by place
	peer    prover        // the last one that can prove it, or has done so; nil before that
	since   time.Time     // when peer was set
	evicted bool
	ignored bool // its Open was, for want of a place: it has to come again, even if there is one by its Confirm
	over    bool // it has given its slot back
}

func newAdmission(handshakes, most, mostOfHost int) *admission {
	return &admission{
		slots: make(chan struct{}, handshakes), asking: make(chan struct{}, maxAsking), most: most, mostOfHost: mostOfHost,
		places: make(map[netip.Prefix]int), peers: make(map[netip.Prefix]int), sent: make(map[netip.Prefix]int),
	}
}

// hostOf returns what counts as one host: an IPv4 address, or a /64 of IPv6, in which a user
// can have any address.
func hostOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.Prefix(bits) // of the zero Addr, the zero Prefix
	return p
}

// enter waits until there is room for a handshake, and makes room if necessary. It fails
// only if ctx ends. cancel must end the handshake soon.
func (a *admission) enter(ctx context.Context, cancel context.CancelCauseFunc, host netip.Prefix) (*newcomer, error) {
	select {
	case a.slots <- struct{}{}:
	default:
		a.drop()
		select {
		case a.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := &newcomer{host: host, cancel: cancel}
	n.at = a.unauthorized.PushBack(n)
	return n, nil
}

// drop ends the oldest handshake, an unauthorized one if there is any.
func (a *admission) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range []*list.List{&a.unauthorized, &a.authorized} {
		if front := l.Front(); front != nil {
			n := front.Value.(*newcomer)
			a.remove(n)
			n.cancel(errTooManyHandshakes)
			return
		}
	}
}

// remove takes n off the list of its state.
func (a *admission) remove(n *newcomer) {
	if n.at == nil {
		return
	}
	switch n.state {
	case unauthorized:
		a.unauthorized.Remove(n.at)
	case authorized:
		a.authorized.Remove(n.at)
	case unproven:
		a.unproven.Remove(n.at)
	}
	n.at = nil
}

// authorize notes that Authorize has let n in: unauthorized ones now make room before it.
func (a *admission) authorize(n *newcomer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n.state == unauthorized && n.at != nil {
		a.remove(n)
		n.state, n.at = authorized, a.authorized.PushBack(n)
	}
}

// full returns why n may not become a peer, and then instead says which peers could make room.
func (a *admission) full(n *newcomer) (instead func(*newcomer) bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fullLocked(n)
}

func (a *admission) fullLocked(n *newcomer) (instead func(*newcomer) bool, err error) {
	switch {
	case n.state == admitted: // its Open was faster than its Confirm
	case a.peers[n.host] >= a.mostOfHost:
		return func(o *newcomer) bool { return o.host == n.host }, fmt.Errorf("%w: %v has %d, none of which is idle (ListenConfig.MaxPeersPerHost)", ErrTooManyPeers, n.host, a.mostOfHost)
	case a.total >= a.most:
		return func(*newcomer) bool { return true }, fmt.Errorf("%w: %d, none of which is idle (ListenConfig.MaxPeers)", ErrTooManyPeers, a.most)
	}
	return nil, nil
}

// place waits for a place in which n can prove itself. If n has one, it keeps it for the next
// provider.
func (a *admission) place(ctx context.Context, n *newcomer) error {
	a.mu.Lock()
	switch n.state {
	case admitted: // by opening a conn, without having confirmed
		a.mu.Unlock()
		return fmt.Errorf("%w: the dialer declines a provider after it has opened a conn", ErrMalformed)
	case unproven:
		n.peer = nil
		a.mu.Unlock()
		return nil
	}
	n.placed = make(chan struct{})
	a.waiting = append(a.waiting, n)
	a.grant()
	a.mu.Unlock()
	select {
	case <-n.placed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // leave takes n off the list
	}
}

// proves sets the peer by which n proves itself.
func (a *admission) proves(n *newcomer, p prover) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n.since, n.peer = time.Now(), p
	a.grant()
}

// grant gives places to those that wait, first to those whose hosts have the fewest.
func (a *admission) grant() {
	now := time.Now()
	beginning, in := a.beginning(now)
	for ; len(a.waiting) > 0 && a.unproven.Len() < maxUnproven && beginning < maxBeginning; beginning++ {
		n := slices.MinFunc(a.waiting, func(n, o *newcomer) int {
			return cmp.Or(cmp.Compare(a.places[n.host], a.places[o.host]), cmp.Compare(a.sent[n.host], a.sent[o.host]))
		})
		a.forgo(n)
		a.remove(n)
		n.state = unproven
		n.at = a.unproven.PushBack(n)
		a.places[n.host]++
		close(n.placed)
	}
	switch {
	case a.unproven.Len() >= maxUnproven:
		a.evict(now)
	case len(a.waiting) > 0 && in > 0: // otherwise endpoints are being opened, after which proves calls grant
		a.lookIn(in)
	}
}

// beginning returns how many have just begun to prove themselves, and in what time the first
// of them will no longer count, 0 if that is not known.
func (a *admission) beginning(now time.Time) (count int, in time.Duration) {
	for e := a.unproven.Front(); e != nil; e = e.Next() {
		n := e.Value.(*newcomer)
		rest := beginningTime - now.Sub(n.since)
		switch {
		case n.evicted:
		case n.peer == nil: // its endpoint is being opened
			count++
		case rest > 0:
			count++
			if in == 0 || rest < in {
				in = rest
			}
		}
	}
	return count, in
}

// lookIn looks again for places to grant, after d.
func (a *admission) lookIn(d time.Duration) {
	if a.timer == nil {
		a.timer = time.AfterFunc(d, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.grant()
		})
		return
	}
	a.timer.Reset(d)
}

// forgo ends n's wait for a place.
func (a *admission) forgo(n *newcomer) {
	a.waiting = slices.DeleteFunc(a.waiting, func(o *newcomer) bool { return o == n })
}

// evict makes as many leave as are waiting, if they have had their time. Otherwise it looks
// again when the first of them has.
func (a *admission) evict(now time.Time) {
	for a.evicted < len(a.waiting) {
		victim, in := a.victim(now)
		if victim == nil {
			if in > 0 {
				a.lookIn(in)
			}
			return
		}
		victim.evicted = true
		a.evicted++
		a.forgetSent()
		a.sent[victim.host]++
		victim.cancel(errUnproven)
	}
}

// forgetSent bounds what is remembered of hosts.
func (a *admission) forgetSent() {
	if len(a.sent) >= maxSent {
		clear(a.sent)
	}
}

// victim returns the one that is to leave next: the oldest of those whose time is over, on
// the host with the most places. If there is none, in is the time until there will be one,
// 0 if all are about to leave or their endpoints are being opened.
func (a *admission) victim(now time.Time) (victim *newcomer, in time.Duration) {
	for e := a.unproven.Front(); e != nil; e = e.Next() {
		n := e.Value.(*newcomer)
		if n.evicted || n.peer == nil { // without a peer, its endpoint is being opened, on our time
			continue
		}
		limit := provingTime
		if (n.peer.Heard() || a.peers[n.host] > 0) && !a.greedy(n.host) {
			limit = heardTime
		}
		switch rest := limit - now.Sub(n.since); {
		case rest <= 0 && (victim == nil || a.places[n.host] > a.places[victim.host]):
			victim = n
		case rest > 0 && (in == 0 || rest < in):
			in = rest
		}
	}
	if victim != nil {
		in = 0
	}
	return victim, in
}

// greedy reports whether a host has more than its share of places while other hosts wait.
func (a *admission) greedy(host netip.Prefix) bool {
	return a.places[host] > maxUnproven/4 && slices.ContainsFunc(a.waiting, func(n *newcomer) bool { return n.host != host })
}

// release gives n's slot back.
func (a *admission) release(n *newcomer) {
	if !n.over {
		n.over = true
		<-a.slots
	}
}

// admit makes n a peer, until gone is called. It fails if there are too many.
func (a *admission) admit(n *newcomer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case n.state == admitted:
		return nil
	case n.state == left || n.evicted:
		return errUnproven
	}
	if _, err := a.fullLocked(n); err != nil {
		n.ignored = true
		return err
	}
	if n.ignored {
		return errIgnored
	}
	a.unplace(n)
	n.state = admitted
	a.peers[n.host]++
	a.total++
	a.forgetSent()
	a.sent[n.host] = -1 // preferred to hosts of which nothing is known
	a.release(n)        // now: if it never confirms, nobody can make it leave
	a.grant()
	return nil
}

// join makes n a peer that has proved itself at another listener.
func (a *admission) join(n *newcomer, p prover) error {
	a.mu.Lock()
	n.peer = p
	a.mu.Unlock()
	return a.admit(n)
}

// unplace takes n off all lists, and its place away.
func (a *admission) unplace(n *newcomer) {
	a.forgo(n)
	a.remove(n)
	if n.state != unproven {
		return
	}
	if lower(a.places, n.host); n.evicted {
		a.evicted--
	}
}

// leave ends a handshake's stay. One that was admitted stays a peer.
func (a *admission) leave(n *newcomer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unplace(n); n.state != admitted {
		n.state = left
	}
	a.release(n)
	a.grant()
}

// gone ends a peer's stay, unless n has become a peer by another prover, which came after p.
func (a *admission) gone(n *newcomer, p prover) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n.state == admitted && n.peer == p {
		n.state = left
		lower(a.peers, n.host)
		a.total--
	}
}

// lower takes one off a count.
func lower(counts map[netip.Prefix]int, host netip.Prefix) {
	if counts[host]--; counts[host] == 0 {
		delete(counts, host)
	}
}

// size returns how many handshakes are under way.
func (a *admission) size() int { return len(a.slots) }
