//go:build cgo

package ofifabric_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// openerVar, set in the environment, makes the test binary open and close endpoints until it is
// killed.
const openerVar = "OFIFABRIC_TEST_OPENER"

// openForever opens and closes endpoints. It prints how long the second one took: the first one also
// starts libfabric.
func openForever() error {
	for n := 1; ; n++ {
		start := time.Now()
		ep, err := openShm()
		if err != nil {
			return err
		}
		if err := ep.Close(); err != nil {
			return err
		}
		if n == 2 {
			fmt.Println(int64(time.Since(start)))
		}
	}
}

// At whatever moment a process that opens and closes endpoints is killed, the next process's Clean
// removes all that it left.
func TestKilledWhileOpening(t *testing.T) {
	if !testenv.OwnShm(t, "size=1g,mode=1777") {
		return
	}
	const kills = 20
	left := 0 // before Clean
	for range kills {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stderr = append(os.Environ(), openerVar+"=1"), os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var took int64
		_, err = fmt.Fscanln(out, &took)
		time.Sleep(time.Duration(rand.Int64N(2*took + 1))) //nolint:gosec // a test's
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.NoError(t, err)
		left += len(shmNames(t))
		shmdir.Clean(shmdir.Dir)
		require.Empty(t, shmNames(t))
	}
	t.Logf("the killed left %d names", left)
	require.NotZero(t, left)
}
