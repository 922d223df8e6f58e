//go:build linux && cgo

package side

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"
)

// Serve waits at a TCP address for one connection, and calls f with it. The connection's deadline,
// Patience from its start, limits how long f may take.
func Serve(address string, f func(oob net.Conn) error) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("waiting on", l.Addr())
	return accept(l, f)
}

func accept(l net.Listener, f func(oob net.Conn) error) error {
	oob, err := l.Accept()
	if err != nil {
		return err
	}
	defer oob.Close()
	return errors.Join(oob.SetDeadline(time.Now().Add(Patience)), f(oob))
}

// Dial is the other side of Serve.
func Dial(address string, f func(oob net.Conn) error) error {
	oob, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer oob.Close()
	return errors.Join(oob.SetDeadline(time.Now().Add(Patience)), f(oob))
}

// Both runs f as Serve does, and runs this program again as the other process, with -dial and
// further arguments.
func Both(f func(oob net.Conn) error, args ...string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.Command(self, append([]string{"-dial", l.Addr().String()}, args...)...)
	other.Stdout, other.Stderr = os.Stdout, os.Stderr
	if err := other.Start(); err != nil {
		return err
	}
	err = l.(*net.TCPListener).SetDeadline(time.Now().Add(Patience))
	if err == nil {
		err = accept(l, f)
	}
	if exit := other.Wait(); exit != nil {
		err = errors.Join(err, fmt.Errorf("the other process: %w", exit))
	}
	return err
}
