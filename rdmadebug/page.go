package rdmadebug

import (
	"maps"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// page is what is shown, whatever the format.
type page struct {
	Time     time.Time `json:"time"`
	Conns    []conn    `json:"conns"`
	NotShown int       `json:"not_shown,omitempty"` // conns beyond the limit
	Metrics  []sample  `json:"metrics"`
}

type conn struct {
	ID       uint64    `json:"id"`
	Phase    string    `json:"phase"`
	Local    string    `json:"local"`
	Remote   string    `json:"remote"`
	Dialed   bool      `json:"dialed"`
	Opened   time.Time `json:"opened"`
	Age      string    `json:"age"`
	Provider string    `json:"provider"`
	Fabric   string    `json:"fabric,omitempty"`
	Domain   string    `json:"domain,omitempty"`
	Reused   bool      `json:"reused"`
	Small    string    `json:"small_path"`
	Large    string    `json:"large_path"`
	Sent     uint64    `json:"sent"` // in bytes, as are the next four
	Received uint64    `json:"received"`
	RDMAOut  uint64    `json:"rdma_sent"`
	RDMAIn   uint64    `json:"rdma_received"`
	Unread   uint64    `json:"unread"`
	Reading  bool      `json:"reading"`
	WaitsFor string    `json:"waits_for,omitempty"`
	PollNs   int64     `json:"poll_ns"` // how long calls that wait poll before they sleep, at present
	Refused  []string  `json:"refused,omitempty"`
}

// Side says whether this side dialed or accepted the conn.
func (c conn) Side() string {
	if c.Dialed {
		return "dialed"
	}
	return "accepted"
}

// Waits says what the calls on the conn wait for.
func (c conn) Waits() string {
	switch {
	case c.WaitsFor != "" && c.Reading:
		return "data; write: " + c.WaitsFor
	case c.WaitsFor != "":
		return "write: " + c.WaitsFor
	case c.Reading:
		return "data"
	}
	return ""
}

// Polls says how long calls that wait poll before they sleep.
func (c conn) Polls() string {
	if c.PollNs == 0 {
		return "no"
	}
	return time.Duration(c.PollNs).String()
}

type sample struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  uint64            `json:"value"`
	Unit   string            `json:"unit"`
	Help   string            `json:"-"`
}

// printable returns a copy with nothing in it but what is printable: peers, and errors, have chosen some of its texts.
func (p *page) printable() *page {
	q := *p
	q.Conns, q.Metrics = slices.Clone(p.Conns), slices.Clone(p.Metrics)
	for i := range q.Conns {
		c := &q.Conns[i]
		for _, s := range []*string{&c.Phase, &c.Local, &c.Remote, &c.Provider, &c.Fabric, &c.Domain, &c.Small, &c.Large, &c.WaitsFor} {
			*s = printable.Text(*s)
		}
		c.Refused = slices.Clone(c.Refused)
		for j, s := range c.Refused {
			c.Refused[j] = printable.Text(s)
		}
	}
	for i := range q.Metrics {
		m := &q.Metrics[i]
		m.Labels = maps.Clone(m.Labels)
		for k, v := range m.Labels {
			m.Labels[k] = printable.Text(v)
		}
	}
	return &q
}

// look makes a page with at most limit conns.
func look(t *rdmanet.Transport, limit int) *page {
	p := &page{Time: time.Now(), Conns: []conn{}}
	list := t.Conns()
	if len(list) > limit {
		list, p.NotShown = list[:limit], len(list)-limit
	}
	for _, s := range list {
		p.Conns = append(p.Conns, connOf(s, p.Time))
	}
	for m := range metrics.Samples(t.Stats()) {
		s := sample{Name: m.Name, Value: m.Value, Unit: m.Unit, Help: m.Help}
		if len(m.Labels) > 0 {
			s.Labels = make(map[string]string)
			for i, key := range m.Labels {
				s.Labels[key] = m.Values[i]
			}
		}
		p.Metrics = append(p.Metrics, s)
	}
	return p
}

func connOf(s rdmanet.ConnState, now time.Time) conn {
	c := conn{
		ID: s.ID, Phase: string(s.Phase), Local: s.Local.String(), Remote: s.Remote.String(), Dialed: s.Dialed,
		Opened: s.Opened, Age: now.Sub(s.Opened).Round(time.Second / 10).String(),
		Provider: s.Provider, Fabric: s.Fabric, Domain: s.Domain, Reused: s.Reused, Small: s.SmallPath, Large: s.LargePath,
		Sent: s.SmallSent + s.LargeSent, Received: s.SmallReceived + s.LargeReceived, RDMAOut: s.LargeSent, RDMAIn: s.LargeReceived,
		Unread: s.Unread, Reading: s.Reading, WaitsFor: s.WaitsFor, PollNs: s.PollTime.Nanoseconds(),
	}
	for _, r := range s.Refused {
		c.Refused = append(c.Refused, r.String())
	}
	return c
}
