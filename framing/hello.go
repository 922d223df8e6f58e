package framing

import (
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

const (
	helloProcess = iota + 1
	helloHost
	helloUID
	helloListener
	helloOffer
	helloPage
	helloSilence
	helloUnoffered
	helloHostUnknown
	helloJoins
)

var helloSchema = schema{
	helloProcess:  {name: "process", required: true},
	helloHost:     {name: "host"},
	helloUID:      {name: "user id"},
	helloListener: {name: "listener"},
	helloOffer:    {name: "offer", repeats: true},
	helloPage:     {name: "page"},
	helloSilence:  {name: "silence"},

	helloUnoffered:   {name: "unoffered", repeats: true},
	helloHostUnknown: {name: "host unknown"},
	helloJoins:       {name: "joins"},
}

const (
	offerProvider = iota + 1
	offerFabric
	offerDomain
	offerLibrary
	offerProtocol
	offerSameHost
	offerSettings
)

var offerSchema = schema{
	offerProvider: {name: "provider", required: true},
	offerFabric:   {name: "fabric"},
	offerDomain:   {name: "domain"},
	offerLibrary:  {name: "library"},
	offerProtocol: {name: "protocol", required: true},
	offerSameHost: {name: "same host"},
	offerSettings: {name: "settings"},
}

// Append appends the body of a Hello message to b.
func (h *Hello) Append(b []byte) ([]byte, error) {
	if err := h.check(); err != nil {
		return b, err
	}
	b = appendTLV(b, helloProcess, h.Process[:]...)
	b = appendTLV(b, helloHost, h.Host[:]...)
	b = appendUint32(b, helloUID, h.UID)
	b = appendUint32(b, helloListener, h.Listener)
	for i := range h.Offers {
		b = appendTLV(b, helloOffer, h.Offers[i].append(nil)...)
	}
	if h.PageNonce != [16]byte{} {
		b = appendTLV(b, helloPage, append(h.PageNonce[:], h.PageName...)...)
	}
	if h.Silence != 0 {
		b = appendUint32(b, helloSilence, h.Silence)
	}
	for _, text := range h.Unoffered {
		b = appendString(b, helloUnoffered, cleanText(text))
	}
	if h.HostUnknown != "" {
		b = appendString(b, helloHostUnknown, cleanText(h.HostUnknown))
	}
	if h.Joins {
		b = appendTLV(b, helloJoins)
	}
	return b, nil
}

// Decode reads the body of a Hello message. Whatever is not printable in a text becomes
// '?'. A provider's name is the exception: it must be printable ASCII without spaces.
func (h *Hello) Decode(body []byte) error {
	*h = Hello{}
	err := helloSchema.walk(body, func(typ uint16, f field) error {
		switch typ {
		case helloProcess:
			return f.id(&h.Process)
		case helloHost:
			return f.id(&h.Host)
		case helloUID:
			return f.uint32(&h.UID)
		case helloListener:
			return f.uint32(&h.Listener)
		case helloOffer:
			if err := checkLen("offers", len(h.Offers)+1, MaxOffers); err != nil {
				return err
			}
			var o Offer
			err := o.decode(f.value)
			h.Offers = append(h.Offers, o)
			return err
		case helloPage:
			if len(f.value) < len(h.PageNonce) {
				return fmt.Errorf("%s: %w: %d bytes", f.name, ErrField, len(f.value))
			}
			n := copy(h.PageNonce[:], f.value)
			return field{f.name, f.value[n:]}.string(&h.PageName, MaxName)
		case helloSilence:
			return f.uint32(&h.Silence)
		case helloUnoffered:
			if err := checkLen("unoffered", len(h.Unoffered)+1, MaxOffers); err != nil {
				return err
			}
			h.Unoffered = append(h.Unoffered, "")
			return f.text(&h.Unoffered[len(h.Unoffered)-1])
		case helloHostUnknown:
			return f.text(&h.HostUnknown)
		case helloJoins:
			h.Joins = true
			return f.fixed(0)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return h.check()
}

func (h *Hello) check() error {
	if h.PageName != "" && h.PageNonce == [16]byte{} {
		return fmt.Errorf("page: %w: a name without a nonce", ErrField)
	}
	if err := checkLen("page", len(h.PageName), MaxName); err != nil {
		return err
	}
	if err := checkLen("offers", len(h.Offers), MaxOffers); err != nil {
		return err
	}
	if err := checkLen("unoffered", len(h.Unoffered), MaxOffers); err != nil {
		return err
	}
	for i := range h.Offers {
		if err := h.Offers[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *Offer) append(b []byte) []byte {
	b = appendString(b, offerProvider, o.Provider)
	b = appendString(b, offerFabric, o.Fabric)
	b = appendString(b, offerDomain, o.Domain)
	b = appendString(b, offerLibrary, o.Library)
	b = appendUint64(b, offerProtocol, uint64(o.Protocol)|uint64(o.ProtocolVersion)<<32)
	if o.SameHost {
		b = appendTLV(b, offerSameHost)
	}
	if o.Settings != "" {
		b = appendString(b, offerSettings, o.Settings)
	}
	return b
}

func (o *Offer) decode(b []byte) error {
	return offerSchema.walk(b, func(typ uint16, f field) error {
		switch typ {
		case offerProvider:
			return f.string(&o.Provider, MaxName)
		case offerFabric:
			return f.label(&o.Fabric)
		case offerDomain:
			return f.label(&o.Domain)
		case offerLibrary:
			return f.label(&o.Library)
		case offerProtocol:
			if err := f.fixed(8); err != nil {
				return err
			}
			o.Protocol = binary.LittleEndian.Uint32(f.value)
			o.ProtocolVersion = binary.LittleEndian.Uint32(f.value[4:])
		case offerSameHost:
			o.SameHost = true
			return f.fixed(0)
		case offerSettings:
			return f.label(&o.Settings)
		}
		return nil
	})
}

func (o *Offer) check() error {
	if err := checkProvider(o.Provider); err != nil {
		return err
	}
	for _, s := range [...]string{o.Fabric, o.Domain, o.Library, o.Settings} {
		if err := checkLen("offer", len(s), MaxName); err != nil {
			return err
		}
	}
	return nil
}

// checkProvider refuses whatever cannot be the name of a provider. Names end up in logs,
// and in lists of reasons, whose separators contain spaces.
func checkProvider(name string) error {
	if err := checkLen("provider", len(name), MaxName); err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("provider: %w: empty name", ErrField)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("provider: %w: %q is no name", ErrField, name)
		}
	}
	return nil
}
