package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const limit = 30 * time.Second

// both sends bytes to an echo server on TCP and gets them back: by way of a Unix socket
// to another process, and from there over the fabric to a proxy in this one.
func both() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer server.Close()
	go echoOne(server)

	from := endpoint{"rdma", "127.0.0.1:0"}
	l, err := from.listen(ctx)
	if err != nil {
		return err
	}
	p := &proxy{
		to:          endpoint{"tcp", server.Addr().String()},
		dialTimeout: limit, grace: limit, log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	serving, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() { defer close(served); p.serve(serving, l) }()

	socket := filepath.Join(dir, "socket")
	err = withOther(ctx, socket, l.Addr().String(), func() error { return exchange(socket) })
	stop()
	<-served
	if err != nil {
		return err
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the other process left its socket: %w", err)
	}
	return nil
}

func echoOne(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return // the other process says why nobody came
	}
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// withOther runs f while another process forwards a Unix socket to the fabric.
func withOther(ctx context.Context, socket, fabric string, f func() error) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.CommandContext(ctx, self, "-listen", "unix://"+socket, "-to", "rdma://"+fabric)
	stderr, err := other.StderrPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	listening, copied := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(copied)
		defer close(listening)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(os.Stderr, lines.Text())
			if strings.Contains(lines.Text(), "msg=listening") {
				listening <- struct{}{}
			}
		}
	}()
	if _, ok := <-listening; ok {
		err = errors.Join(f(), other.Process.Signal(syscall.SIGTERM))
	}
	<-copied
	if exit := other.Wait(); exit != nil {
		return errors.Join(err, fmt.Errorf("the other process: %w", exit))
	}
	return err
}

// exchange sends bytes, ends its direction, and compares what comes back.
func exchange(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	want := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- errors.Join(err, c.(*net.UnixConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-sent); err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%d bytes came back for %d, or others", len(got), len(want))
	}
	fmt.Printf("%d bytes went through unix, rdma and tcp, and came back the same\n", len(got))
	return nil
}
