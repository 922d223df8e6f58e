package doctor

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

// Inventory is what libfabric offers on this machine, and what rdmanet would choose.
type Inventory struct {
	Compiled string   `json:"compiled"` // versions of libfabric
	InUse    string   `json:"inUse"`
	Choices  []Choice `json:"choices"`
}

// Choice is what rdmanet would choose for conns whose control connection has a local
// address.
type Choice struct {
	Local     netip.Addr             `json:"local"`
	Providers []rdmanet.ProviderInfo `json:"providers"`
}

// LocalAddrs returns the addresses to take an inventory for: the given one or, if that is empty,
// all of this machine but those of a link only.
func LocalAddrs(one string) (list []netip.Addr, err error) {
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

// TakeInventory asks libfabric. providers are those that a Dialer would name, nil for none.
func TakeInventory(ctx context.Context, locals []netip.Addr, providers []string) (inv Inventory, err error) {
	inv.Compiled, inv.InUse, _ = versions()
	t := new(rdmanet.Transport)
	for _, local := range locals {
		list, err := t.Providers(ctx, local, providers)
		if err != nil {
			return inv, errors.Join(err, t.Close())
		}
		inv.Choices = append(inv.Choices, Choice{local, list})
	}
	return inv, t.Close()
}

// WriteJSON prints the inventory for programs.
func (inv Inventory) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(inv)
}

// WriteText prints a table of the domains, and one of the choices for each address, or for several
// with the same.
func (inv Inventory) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "libfabric %s, compiled with %s\n\n", inv.InUse, inv.Compiled)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cells(tw, "PROVIDER", "DOMAIN", "FABRIC", "ADDRESSES", "PROTOCOL", "INJECT", "MAX MESSAGE", "CQ DATA", "ORDER", "MR MODE", "WAIT", "LARGE WRITES")
	for _, p := range inv.domains() {
		cells(tw, p.Provider, p.Domain, p.Fabric, words(p.Addresses), fmt.Sprintf("%d.%d", p.Protocol, p.ProtocolVersion),
			p.InjectSize, bytesText(p.MaxMsgSize), p.CQDataSize, p.Order, p.MRMode, p.WaitObject, p.LargePath)
	}
	for _, c := range inv.tables() {
		cells(tw)
		fmt.Fprintf(tw, "for conns at %s:\n", words(c.locals))
		cells(tw, "RANK", "PROVIDER", "DOMAIN", "WHY NOT")
		var absent []string
		for _, p := range c.providers {
			switch {
			case p.Rank > 0:
				cells(tw, p.Rank, p.Provider, p.Domain, "")
			case isAbsent(p):
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

// A table has the choice for some local addresses.
type table struct {
	locals    []netip.Addr
	providers []rdmanet.ProviderInfo
}

// tables puts addresses with the same choice together.
func (inv Inventory) tables() (list []table) {
	for _, c := range inv.Choices {
		i := slices.IndexFunc(list, func(t table) bool { return slices.EqualFunc(t.providers, c.Providers, sameLine) })
		if i < 0 {
			list = append(list, table{[]netip.Addr{c.Local}, c.Providers})
		} else {
			list[i].locals = append(list[i].locals, c.Local)
		}
	}
	return list
}

// sameLine reports whether two entries of a table of choices look the same.
func sameLine(p, q rdmanet.ProviderInfo) bool {
	return p.Rank == q.Rank && p.Provider == q.Provider && p.Domain == q.Domain && (p.Reason == q.Reason || isAbsent(p))
}

// isAbsent reports whether a provider has nothing here. shm always could.
func isAbsent(p rdmanet.ProviderInfo) bool {
	return p.Domain == "" && p.Rank == 0 && p.Provider != "shm"
}

// domains lists what could be opened, each domain once.
func (inv Inventory) domains() (list []rdmanet.ProviderInfo) {
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

// cells writes the cells of one line; nothing is a dash.
func cells(w io.Writer, values ...any) {
	texts := make([]string, len(values))
	for i, c := range values {
		texts[i] = cmp.Or(fmt.Sprint(c), "-")
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// bytesText is a limit in bytes; providers without one say so in various ways.
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
