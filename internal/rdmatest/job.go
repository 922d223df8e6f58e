package rdmatest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// ManyConns is how many conns there are in tests of many conns.
const ManyConns = 1000

const (
	jobOffsets  = 4096
	maxJob      = 4 << 20
	jobHeader   = 16
	jobAccepted = 'y'
)

// JobData returns the bytes of which all conns send parts.
var JobData = sync.OnceValue(func() []byte {
	b := make([]byte, maxJob+jobOffsets)
	x := uint64(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
})

// job returns the size bytes that conn number id sends. Each conn sends something else.
func job(id, size int) []byte { return JobData()[id*7%jobOffsets:][:size] }

// SendJob sends a job and waits until the receiver says whether it has arrived intact.
func SendJob(c net.Conn, id, size int) error {
	var h [jobHeader]byte
	binary.LittleEndian.PutUint64(h[:], uint64(id))
	binary.LittleEndian.PutUint64(h[8:], uint64(size))
	if _, err := c.Write(h[:]); err != nil {
		return err
	}
	if _, err := c.Write(job(id, size)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, h[:1]); err != nil {
		return err
	}
	if h[0] != jobAccepted {
		return fmt.Errorf("job %d arrived damaged", id)
	}
	return nil
}

// TakeJob is the other side of SendJob.
func TakeJob(c net.Conn) error {
	var h [jobHeader]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return err
	}
	id, size := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])
	want, opinion := job(int(id), int(size)), byte(jobAccepted)
	for buf := make([]byte, 64<<10); len(want) > 0; {
		n, err := c.Read(buf[:min(len(buf), len(want))])
		if err != nil {
			return err
		}
		if !bytes.Equal(want[:n], buf[:n]) {
			opinion = 'n'
		}
		want = want[n:]
	}
	_, err := c.Write([]byte{opinion})
	return err
}

// TakeJobs takes a job on each conn that l accepts, until l is closed.
func TakeJobs(l net.Listener) {
	Serve(l, func(c net.Conn) {
		defer c.Close()
		_ = TakeJob(c) // the sender notices a failure, too
	})
}
