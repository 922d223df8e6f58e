//go:build linux && cgo

package systemtest

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["hostile"] = attackAll }

// attackAll reads the names of attacks from its standard input, carries each one out,
// and prints what came of it.
func attackAll(provider, addr string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		name, claims, _ := strings.Cut(in.Text(), "\t")
		answer := attackOnce(provider, addr, claims, attacks[name])
		fmt.Println(strings.ReplaceAll(answer, "\n", "; ")) // one line for each line that was read
	}
	return in.Err()
}

func attackOnce(provider, addr, claims string, a attack) string {
	var name []byte
	if a.claims {
		name, _ = hex.DecodeString(claims)
	}
	h, err := intrude(provider, addr, a.slots, name)
	if err != nil {
		return "meeting: " + err.Error()
	}
	defer h.leave()
	if err := a.run(h); err != nil {
		return "attacking: " + err.Error()
	}
	_ = h.settle()
	wait := time.Duration(0)
	if a.cut {
		wait = rdmatest.Patience
	}
	switch cut := h.cutOff(wait); {
	case cut:
		return "cut off"
	case a.either:
		return "ignored"
	}
	h.greedy = true
	if err := h.ping(); err != nil {
		return "not cut off, but not answered either: " + err.Error()
	}
	return "ignored"
}

// TestHostilePeers: a peer that holds a valid token sends frames that are mutated,
// replayed, forged, too large, too many or meant for others, and makes RDMA writes where
// it may not, while a good client works. The good client notices nothing. The hostile
// peer is cut off, or what it sends is ignored, and the attack's counter shows it.
func TestHostilePeers(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr, other := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			t.Cleanup(func() { assert.NoError(t, other.Close()) })
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			var served sync.WaitGroup
			served.Go(func() { rdmatest.ServeEcho(l) })
			via, heard := eavesdrop(t, l.Addr().String())
			good := rdmatest.NewGoodClient(t, &rdmanet.Dialer{Transport: other, Providers: []string{provider}}, via)
			claims := hex.EncodeToString(heard())

			cmd := rdmatest.Process(t, "hostile", provider, l.Addr().String())
			stdin, stdout := rdmatest.Start(t, cmd)
			names := []string{}
			for name := range attacks {
				names = append(names, name)
			}
			slices.Sort(names)
			for range rdmatest.Rounds(1, 5) {
				for _, name := range names {
					a := attacks[name]
					if a.trust && provider == "shm" || a.mapped && provider != "shm" {
						continue
					}
					before := tr.Stats().Providers[provider]
					good.Works(t, name+", before")
					_, err := fmt.Fprintf(stdin, "%s\t%s\n", name, claims)
					require.NoError(t, err)
					answer := rdmatest.Line(t, stdout)
					good.Works(t, name)
					if a.counted != nil { // once the peer is gone, at the latest
						rdmatest.Eventually(t, func() bool { return a.counted(tr.Stats().Providers[provider]) > a.counted(before) }, name+": "+answer)
					}
					after := tr.Stats().Providers[provider]
					t.Logf("%s: %s; dropped %d, stray %d and %d, violations %d, errors %d, abandoned %d", name, answer,
						after.FramesDropped-before.FramesDropped, after.FramesStray-before.FramesStray,
						after.WritesStray-before.WritesStray, after.Violations-before.Violations, after.CQErrors-before.CQErrors,
						after.Abandoned-before.Abandoned)
					switch {
					case a.either:
						assert.Contains(t, []string{"cut off", "ignored"}, answer, name)
					case a.cut:
						assert.Equal(t, "cut off", answer, name)
					default:
						assert.Equal(t, "ignored", answer, name)
					}
				}
			}
			require.NoError(t, stdin.Close())
			require.NoError(t, cmd.Wait())
			good.Stop(t)
			require.NoError(t, l.Close())
			served.Wait()
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers <= 1 }, "the hostile peers are gone")
		})
	}
}
