package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A peer is a client process with one conn. It waits in Read unless it has its turn.
type peer struct {
	conn    net.Conn
	meter   *meter
	resting chan error // how the Read ended
}

// playPeer opens the conn and takes turns when asked to.
func playPeer(ctx context.Context, transport carrier, in *bufio.Scanner, out *json.Encoder) error {
	if !in.Scan() {
		return in.Err()
	}
	m := &meter{transport: transport}
	m.mark()
	c, err := transport.dial(ctx, in.Text())
	if err != nil {
		return err
	}
	p := &peer{conn: c, meter: m, resting: make(chan error, 1)}
	return errors.Join(p.play(in, out), c.Close())
}

func (p *peer) play(in *bufio.Scanner, out *json.Encoder) error {
	// A turn without operations is one round trip: after that the server has accepted the conn.
	if err := takeTurn(p.conn, workload.ModeLat, 1)(time.Now(), new(workload.Histogram)); err != nil {
		return err
	}
	p.rest()
	for r, err := (reply{}), error(nil); ; r, err = p.answer(in.Text()) {
		if err == nil {
			err = out.Encode(r)
		}
		if err != nil || !in.Scan() {
			return errors.Join(err, in.Err())
		}
	}
}

// answer does what a line of the input asks for.
func (p *peer) answer(line string) (reply, error) {
	if isQuestion(line) {
		u, err := p.meter.answer(line)
		return reply{Usage: u}, err
	}
	var t turn
	if err := json.Unmarshal([]byte(line), &t); err != nil {
		return reply{}, fmt.Errorf("the turn is not readable: %w", err)
	}
	if err := p.rise(); err != nil {
		return reply{}, err
	}
	defer p.rest()
	time.Sleep(time.Until(t.Begin))
	began := time.Now()
	s, h, err := workTogether([]worker{takeTurn(p.conn, t.Mode, t.Size)}, t.Time, p.meter)
	return reply{Sample: s, Began: began, Times: h.Counted()}, err
}

// rest waits in Read, as the goroutine of an idle conn does in programs.
func (p *peer) rest() {
	go func() {
		n, err := p.conn.Read(make([]byte, 1))
		if n > 0 {
			err = errors.New("a byte came that nobody had asked for")
		}
		p.resting <- err
	}()
}

// rise ends rest.
func (p *peer) rise() error {
	if err := p.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	if err := <-p.resting; !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("while the conn was idle: %w", err)
	}
	return p.conn.SetReadDeadline(time.Time{})
}
