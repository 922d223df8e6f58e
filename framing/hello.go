package framing

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// Limits of the handshake messages.
const (
	MaxOffers       = 64   // providers in a Hello
	MaxName         = 255  // bytes of a provider's, fabric's, domain's, library's or page's name
	MaxEndpointName = 512  // bytes of Attach.Name
	MaxText         = 1024 // bytes of the text in a Reject, Decline, Select or Attach
)

// Offer is one provider that a side can use.
type Offer struct {
	Provider        string // libfabric's name, "shm" or "tcp;ofi_rxm"
	Fabric          string
	Domain          string
	Library         string // version of the library; must be equal at both ends for SameHost offers
	Protocol        uint32 // wire protocol and its version; must be equal at both ends
	ProtocolVersion uint32
	SameHost        bool // reaches processes on this host only
	// Settings are the settings of the library that must be equal at both ends:
	// "NAME=value", separated by spaces.
	Settings string
}

// Hello is what a side says about itself before anything is negotiated.
type Hello struct {
	Process  [16]byte // random, drawn once per process
	Host     [16]byte // equal for processes on one host; 0: not known
	UID      uint32   // effective user id
	Listener uint32   // listening side: number that Open frames name
	Offers   []Offer  // most wanted first
	// Unoffered lists, for people, the providers that the side could use if it were told
	// to, or if something were fixed: "provider", or "provider: reason".
	Unoffered []string
	// PageName names the page that holds the sleeping flags; only the dialling side
	// sets it. The page begins with what is derived from PageNonce, which the listening side repeats
	// if it has the page mapped. Zero: no page.
	PageName  string
	PageNonce [16]byte
	// Silence is the number of milliseconds without a heartbeat after which the sender
	// takes the peer for dead. 0: it does not say.
	Silence uint32
	// HostUnknown says, for people, why Host is 0.
	HostUnknown string
	// Joins announces, on the dialling side, a Join or Decline as the next message.
	Joins bool
}

func (h *Hello) fields() fields {
	return fields{
		{1, "process", required, octets(h.Process[:])},
		{2, "host", optional, octets(h.Host[:])},
		{3, "user id", optional, number(&h.UID)},
		{4, "listener", optional, number(&h.Listener)},
		{5, "offer", repeated, (*offers)(&h.Offers)},
		{6, "page", optional, page{h}},
		{7, "silence", optional, number(&h.Silence)},
		{8, "unoffered", repeated, (*texts)(&h.Unoffered)},
		{9, "host unknown", optional, text(&h.HostUnknown)},
		{10, "joins", optional, (*flag)(&h.Joins)},
	}
}

// page is PageNonce and PageName in one field.
type page struct{ *Hello }

func (v page) append(b []byte, typ uint16) ([]byte, error) {
	if v.PageNonce != [16]byte{} {
		b = appendTLV(b, typ, append(v.PageNonce[:], v.PageName...)...)
	}
	return b, v.check()
}

func (v page) decode(b []byte) error {
	if len(b) < len(v.PageNonce) {
		return fmt.Errorf("%w: %d bytes", ErrField, len(b))
	}
	n := copy(v.PageNonce[:], b)
	v.PageName = string(b[n:])
	return v.check()
}

func (v page) check() error {
	if v.PageName != "" && v.PageNonce == [16]byte{} {
		return fmt.Errorf("%w: a name without a nonce", ErrField)
	}
	return atMost(len(v.PageName), MaxName)
}

// offers is a field that occurs once for each of the offers, which are fields themselves.
type offers []Offer

func (v *offers) append(b []byte, typ uint16) ([]byte, error) {
	err := atMost(len(*v), MaxOffers)
	for i := 0; i < len(*v) && err == nil; i++ {
		var offer []byte
		offer, err = (*v)[i].fields().append(nil)
		b = appendTLV(b, typ, offer...)
	}
	return b, err
}

func (v *offers) decode(b []byte) error {
	var o Offer
	err := o.fields().decode(b)
	*v = append(*v, o)
	return cmp.Or(err, atMost(len(*v), MaxOffers))
}

func (o *Offer) fields() fields {
	return fields{
		{1, "provider", required, (*provider)(&o.Provider)},
		{2, "fabric", optional, label(&o.Fabric)},
		{3, "domain", optional, label(&o.Domain)},
		{4, "library", optional, label(&o.Library)},
		{5, "protocol", required, protocol{o}},
		{6, "same host", optional, (*flag)(&o.SameHost)},
		{7, "settings", optional, label(&o.Settings)},
	}
}

// protocol is Protocol and ProtocolVersion in one field.
type protocol struct{ *Offer }

func (v protocol) append(b []byte, typ uint16) ([]byte, error) {
	both := binary.LittleEndian.AppendUint32(nil, v.Protocol)
	return appendTLV(b, typ, binary.LittleEndian.AppendUint32(both, v.ProtocolVersion)...), nil
}

func (v protocol) decode(b []byte) error {
	if err := fixed(b, 8); err != nil {
		return err
	}
	v.Protocol, v.ProtocolVersion = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	return nil
}

// provider is the name of a provider. Names end up in logs, and in lists of reasons, whose
// separators contain spaces.
type provider string

func (v *provider) append(b []byte, typ uint16) ([]byte, error) {
	return appendTLV(b, typ, []byte(*v)...), v.check()
}

func (v *provider) decode(b []byte) error {
	*v = provider(b)
	return v.check()
}

func (v *provider) check() error {
	if *v == "" {
		return fmt.Errorf("%w: empty name", ErrField)
	}
	if err := atMost(len(*v), MaxName); err != nil { // first: what is said of the name has its length
		return err
	}
	for _, c := range []byte(*v) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("%w: %q is no name", ErrField, string(*v))
		}
	}
	return nil
}
