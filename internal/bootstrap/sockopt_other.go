//go:build !linux

package bootstrap

import (
	"net"
	"time"
)

// setUserTimeout does nothing: the heartbeat's deadline has to do.
func setUserTimeout(*net.TCPConn, time.Duration) {}
