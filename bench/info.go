package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// inventory is what -info prints.
type inventory struct {
	Compiled string   `json:"compiled"` // versions of libfabric
	InUse    string   `json:"inUse"`
	Choices  []choice `json:"choices"`
}

// choice is what rdmanet would choose for conns whose control connection has this local address.
type choice struct {
	Local     netip.Addr             `json:"local"`
	Providers []rdmanet.ProviderInfo `json:"providers"`
}

// info prints the inventory, as JSON with -json -.
func info(ctx context.Context, w io.Writer, p plan) error {
	locals, err := localAddrs(p.local)
	if err != nil {
		return err
	}
	providers := p.providers
	if slices.Equal(providers, []string{"all"}) {
		providers = nil
	}
	inv, err := takeInventory(ctx, locals, providers)
	if err != nil {
		return err
	}
	if p.jsonFile == "-" {
		return inv.writeJSON(w)
	}
	return errors.Join(inv.writeText(w), save(p.jsonFile, inv.writeJSON), save(p.textFile, inv.writeText))
}

// localAddrs returns the addresses to choose for: the given one, or all addresses of this machine
// except link-local ones.
func localAddrs(one string) (list []netip.Addr, err error) {
	if one != "" {
		a, err := netip.ParseAddr(one)
		return []netip.Addr{a}, err
	}
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			list = append(list, p.Addr())
		}
	}
	return list, err
}

func takeInventory(ctx context.Context, locals []netip.Addr, providers []string) (inv inventory, err error) {
	inv.Compiled, inv.InUse = libfabricVersions()
	t := new(rdmanet.Transport)
	for _, local := range locals {
		list, err := t.Providers(ctx, local, providers)
		if err != nil {
			return inv, errors.Join(err, t.Close())
		}
		inv.Choices = append(inv.Choices, choice{local, list})
	}
	return inv, t.Close()
}

func (inv inventory) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(inv)
}

func (inv inventory) writeText(w io.Writer) error {
	fmt.Fprintf(w, "libfabric %s, compiled with %s\n\n", inv.InUse, inv.Compiled)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cells(tw, "PROVIDER", "DOMAIN", "FABRIC", "ADDRESSES", "PROTOCOL", "INJECT", "MAX MESSAGE", "CQ DATA", "ORDER", "MR MODE", "WAIT", "LARGE WRITES")
	for _, p := range inv.domains() {
		cells(tw, p.Provider, p.Domain, p.Fabric, words(p.Addresses), fmt.Sprintf("%d.%d", p.Protocol, p.ProtocolVersion),
			p.InjectSize, bytesText(p.MaxMsgSize), p.CQDataSize, p.Order, p.MRMode, p.WaitObject, p.LargePath)
	}
	for _, c := range inv.Choices {
		cells(tw)
		fmt.Fprintf(tw, "for conns at %s:\n", c.Local)
		cells(tw, "RANK", "PROVIDER", "DOMAIN", "WHY NOT")
		var absent []string
		for _, p := range c.Providers {
			switch {
			case p.Rank > 0:
				cells(tw, p.Rank, p.Provider, p.Domain, "")
			case p.Domain == "" && p.Provider != "shm": // every machine could have shm
				absent = append(absent, p.Provider)
			default:
				cells(tw, "", p.Provider, p.Domain, p.Reason)
			}
		}
		if len(absent) > 0 {
			fmt.Fprintln(tw, "not there:", strings.Join(absent, ", "))
		}
	}
	return tw.Flush()
}

// domains lists what could be opened, each domain once.
func (inv inventory) domains() (list []rdmanet.ProviderInfo) {
	for _, c := range inv.Choices {
		for _, p := range c.Providers {
			same := func(q rdmanet.ProviderInfo) bool { return p.Provider == q.Provider && p.Domain == q.Domain }
			if p.MaxMsgSize > 0 && !slices.ContainsFunc(list, same) {
				list = append(list, p)
			}
		}
	}
	return list
}

// cells writes the cells of one line. An empty cell becomes a dash.
func cells(w io.Writer, values ...any) {
	texts := make([]string, len(values))
	for i, c := range values {
		texts[i] = cmp.Or(fmt.Sprint(c), "-")
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// bytesText prints a limit in bytes. Providers without a limit say so in various ways.
func bytesText(n uint64) string {
	if n >= 1<<62 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func words[T fmt.Stringer](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, " ")
}
