//go:build asan

package pool

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// offences are uses of memory on which AddressSanitizer has to end the process.
var offences = map[string]func(){
	"slot never taken": func() {
		s := NewSlots(NewBudget(0), nil, 256)
		_ = s.Grow(2)
		_, _ = s.Get()
		s.Bytes(1)[0] = 1
	},
	"slot put back": func() {
		s := NewSlots(NewBudget(0), nil, 256)
		_ = s.Grow(2)
		slot, _ := s.Get()
		mem := s.Bytes(slot)
		mem[255] = 1
		s.Put(slot)
		mem[255] = 1
	},
	"ring freed": func() {
		a := NewArena(NewBudget(0), nil, AccessRemoteWrite, MinBlock)
		b, _ := a.Alloc(MinBlock)
		b.Bytes[100] = 1
		a.Free(b)
		b.Bytes[100] = 1
	},
	"slab unmapped": func() {
		s, _ := NewSlab(NewBudget(0), nil, MinBlock, AccessLocal)
		mem := s.Bytes()
		_ = s.Close()
		mem[0] = 1
	},
}

const offenceVar = "POOL_TEST_OFFENCE"

func TestMain(m *testing.M) {
	if f := offences[os.Getenv(offenceVar)]; f != nil {
		f()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestOffencesAreNoticed commits each offence in a process of its own.
func TestOffencesAreNoticed(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for name := range offences {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), offenceVar+"="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%s", out)
			want := "use-after-poison"
			if name == "slab unmapped" {
				want = "fault address"
			}
			assert.Contains(t, string(out), want)
		})
	}
}

// It is no offence to use memory of a dead peer, where operations may still land, or what was mapped in place of another.
func TestNoOffence(t *testing.T) {
	a, _, _ := landing(MinBlock)
	blocks := alloc(t, a, MinBlock, 2)
	b, c := blocks[0], blocks[1]
	a.Free(c)
	require.NoError(t, a.Deregister())
	a.Free(b)
	b.Bytes[0], c.Bytes[0] = 1, 1
	require.NoError(t, a.Close())
	for range 3 {
		s := NewSlots(NewBudget(0), nil, 256)
		require.NoError(t, s.Grow(100))
		require.NoError(t, s.Close())
		slab := newSlabOf(t, NewBudget(0), nil, 100*256, AccessLocal)
		clear(slab.Bytes())
		require.NoError(t, slab.Close())
	}
}
