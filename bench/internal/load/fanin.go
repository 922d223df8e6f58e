package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

const (
	// startsAtOnce is how many processes of a fan-in start at a time, per CPU: with too many,
	// handshakes take longer than their limit.
	startsAtOnce = 2
	// startTime is about how long a peer takes to start.
	startTime = 60 * time.Millisecond
	// settleTime is how long peers take to give back what they do not use, and a bit more.
	settleTime = 3500 * time.Millisecond
	// leaveTime is how long the server may take to notice that peers have left.
	leaveTime = 10 * time.Second
)

// fanIns measures rows with peers. Its processes live from the first of such rows of a transport to
// the last one in a round.
type fanIns struct {
	program string
	memory  bool // some rows measure the memory that peers take
	now     *fanIn
}

// measure does j once. After an error, and after the last row, all processes end.
func (fs *fanIns) measure(ctx context.Context, j Job) (s workload.Sample, err error) {
	if fs.now == nil {
		if fs.now, err = startFanIn(ctx, fs.program, j); err != nil {
			return workload.Sample{}, err
		}
	}
	f := fs.now
	limit := j.limit() + time.Duration(j.Peers())*10*startTime + settleTime
	timer := time.AfterFunc(limit, func() { f.end(fmt.Errorf("it was not done in %v", limit)) })
	defer timer.Stop()
	s, err = f.measure(j, fs.memory)
	switch {
	case err != nil:
		err = errors.Join(err, f.whyServerEnded())
	case j.Last:
		err = f.stop()
	default:
		return s, nil
	}
	fs.close()
	return s, err
}

// close ends the processes that are left, such as after an error.
func (fs *fanIns) close() {
	if fs.now != nil {
		fs.now.end(nil)
		_ = fs.now.stop() // they are killed, if they were not stopped before
		fs.now = nil
	}
}

// A fanIn is a server process and its peers, which are client processes with a conn each.
type fanIn struct {
	program string
	job     Job // of each process
	ctx     context.Context
	end     context.CancelCauseFunc // kills all
	server  *process
	address string
	clients []*process
	marked  bool   // the server has noted its memory with one peer
	alone   *fanIn // one of a single peer, nil until something is compared with it
}

func startFanIn(ctx context.Context, program string, j Job) (*fanIn, error) {
	f := &fanIn{program: program, job: Job{Case: j.Case, Host: j.Host}}
	f.job.Mode = workload.ModePeers
	f.ctx, f.end = context.WithCancelCause(ctx)
	var err error
	if f.server, err = start(f.ctx, program, roleServer, f.job); err != nil {
		f.end(nil)
		return nil, err
	}
	ready, err := f.server.receive()
	if err != nil {
		err = errors.Join(err, f.server.stop())
		f.end(nil)
		return nil, err
	}
	f.address = ready.Address
	return f, nil
}

// measure does j with as many peers as it wants.
func (f *fanIn) measure(j Job, memory bool) (workload.Sample, error) {
	if memory && !f.marked {
		if err := f.mark(); err != nil {
			return workload.Sample{}, err
		}
	}
	if err := f.resize(j.Peers()); err != nil {
		return workload.Sample{}, err
	}
	switch {
	case j.Mode == workload.ModeIdle:
		return f.measureIdle(j)
	case j.IsAmong():
		return f.measureBoth(j)
	}
	return f.measureWork(j)
}

// measureBoth measures the peer among idle ones, and a peer with a server of its own. The latter
// comes right before or after the former, by turns. What so many processes cost just by being
// there, they cost both.
func (f *fanIn) measureBoth(j Job) (s workload.Sample, err error) {
	if f.alone == nil {
		if f.alone, err = startFanIn(f.ctx, f.program, f.job); err != nil {
			return workload.Sample{}, err
		}
	}
	lone := j
	lone.Idle = 0
	var alone workload.Sample
	first := j.Round%2 == 0
	if first {
		alone, err = f.alone.measure(lone, false)
	}
	if err == nil {
		s, err = f.measureWork(j)
	}
	if err == nil && !first {
		alone, err = f.alone.measure(lone, false)
	}
	s.Alone = &alone
	return s, err
}

// measureWork measures the work of the busy peers.
func (f *fanIn) measureWork(j Job) (workload.Sample, error) {
	if _, err := f.work(j, j.WarmUp); err != nil {
		return workload.Sample{}, err
	}
	before, err := f.usage()
	if err != nil {
		return workload.Sample{}, err
	}
	s, err := f.work(j, j.Time)
	if err != nil {
		return workload.Sample{}, err
	}
	after, err := f.usage()
	s.Server = after.Since(before)
	return s, err
}

// whyServerEnded returns why the server ended, or why it was killed, once something has failed.
func (f *fanIn) whyServerEnded() error {
	timer := time.AfterFunc(killDelay, func() { f.end(nil) })
	defer timer.Stop()
	err := f.server.stop()
	switch cause := context.Cause(f.ctx); {
	case cause == nil:
		return err // none, if it has only cleaned up
	case errors.Is(cause, context.Canceled):
		return nil
	default:
		return cause
	}
}

// mark has the server note its memory with one peer.
func (f *fanIn) mark() error {
	if err := f.resize(1); err != nil {
		return err
	}
	if err := pause(f.ctx, settleTime); err != nil {
		return err
	}
	_, err := f.server.ask(askMark)
	f.marked = err == nil
	return err
}

// measureIdle finds out what the server uses for idle peers, and what the peer that came last uses.
func (f *fanIn) measureIdle(j Job) (workload.Sample, error) {
	if err := pause(f.ctx, j.WarmUp); err != nil {
		return workload.Sample{}, err
	}
	var s workload.Sample
	client := f.clients[len(f.clients)-1]
	clientBefore, err1 := client.ask(askUsage)
	before, err2 := f.usage()
	start := time.Now()
	err3 := pause(f.ctx, j.Time)
	s.Elapsed = time.Since(start)
	after, err4 := f.usage()
	clientAfter, err5 := client.ask(askUsage)
	// What the memory is without garbage. This comes last since it takes CPU time.
	serverMemory, err6 := f.server.ask(askMemory)
	clientMemory, err7 := client.ask(askMemory)
	s.Server = serverMemory.Usage
	s.Server.CPU, s.Server.Mallocs = after.CPU-before.CPU, after.Mallocs-before.Mallocs
	s.Client = clientMemory.Usage
	s.Client.CPU, s.Client.Mallocs = clientAfter.Usage.CPU-clientBefore.Usage.CPU, clientAfter.Usage.Mallocs-clientBefore.Usage.Mallocs
	return s, errors.Join(err1, err2, err3, err4, err5, err6, err7)
}

// usage returns what the server has used. It fails if the server does not have a conn for each
// peer, since no figure may be that of fewer peers than its row says.
func (f *fanIn) usage() (workload.Usage, error) {
	r, err := f.server.ask(askUsage)
	if err == nil && r.Usage.Conns != len(f.clients) {
		err = fmt.Errorf("the server has %d conns of %d peers", r.Usage.Conns, len(f.clients))
	}
	return r.Usage, err
}

// work makes the busy peers work at once for about d.
func (f *fanIn) work(j Job, d time.Duration) (workload.Sample, error) {
	busy := f.clients[:j.Busy]
	line, err := json.Marshal(turn{Mode: j.Mode, Size: j.Size, Begin: time.Now().Add(j.lead()), Time: d})
	if err != nil {
		return workload.Sample{}, err
	}
	replies := make([]reply, len(busy))
	err = each(len(busy), len(busy), func(i int) (err error) {
		replies[i], err = busy[i].ask(string(line))
		return failed(busy[i], err)
	})
	return together(replies), err
}

// together sums up what all of them have done, from the first one's start to the last one's end.
func together(replies []reply) (s workload.Sample) {
	if len(replies) == 0 {
		return s
	}
	all := new(workload.Histogram)
	shares := make([]float64, len(replies))
	first, last := replies[0].Began, replies[0].Began
	for i, r := range replies {
		all.AddCounted(r.Times)
		shares[i] = float64(r.Sample.Ops)
		s.Client = s.Client.Plus(r.Sample.Client)
		if r.Began.Before(first) {
			first = r.Began
		}
		if end := r.Began.Add(r.Sample.Elapsed); end.After(last) {
			last = end
		}
	}
	s.Take(all)
	s.Elapsed, s.Fairness = last.Sub(first), jain(shares)
	return s
}

// resize starts peers, or stops those that came last, until there are n.
func (f *fanIn) resize(n int) error {
	atOnce := startsAtOnce * runtime.NumCPU()
	if n < len(f.clients) {
		leaving := f.clients[n:]
		f.clients = f.clients[:n]
		if err := each(len(leaving), atOnce, func(i int) error { return leaving[i].stop() }); err != nil {
			return err
		}
		return f.awaitLeave()
	}
	come := make([]*process, n-len(f.clients))
	err := each(len(come), atOnce, func(i int) (err error) {
		if come[i], err = start(f.ctx, f.program, roleClient, f.job); err != nil {
			return err
		}
		_, err = come[i].ask(f.address)
		return failed(come[i], err)
	})
	for _, p := range come {
		if p != nil {
			f.clients = append(f.clients, p)
		}
	}
	return err
}

// awaitLeave waits until the server has noticed that peers have left.
func (f *fanIn) awaitLeave() error {
	for start := time.Now(); ; {
		_, err := f.usage()
		if err == nil || f.ctx.Err() != nil || time.Since(start) > leaveTime {
			return err
		}
		if err := pause(f.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// stop makes all processes clean up and end, the server last.
func (f *fanIn) stop() error {
	clients := f.clients
	f.clients = nil
	var alone error
	if f.alone != nil {
		alone = f.alone.stop()
	}
	err := each(len(clients), len(clients), func(i int) error { return clients[i].stop() })
	return errors.Join(alone, err, f.server.stop())
}

// each calls f for 0 to n-1, at most atOnce at a time, until one call fails. It returns that error.
func each(n, atOnce int, f func(int) error) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	room := make(chan struct{}, max(atOnce, 1))
	failing := make(chan struct{})
	for i := range n {
		select {
		case room <- struct{}{}:
		case <-failing:
			continue
		}
		wg.Go(func() {
			defer func() { <-room }()
			if err := f(i); err != nil {
				once.Do(func() { first = err; close(failing) })
			}
		})
	}
	wg.Wait()
	return first
}

// failed adds to an error why the process has ended.
func failed(p *process, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, p.stop())
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
