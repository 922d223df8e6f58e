//go:build !linux

package bootstrap

import (
	"net"
	"time"
)

// setUserTimeout does nothing: heartbeats have to do.
func setUserTimeout(*net.TCPConn, time.Duration) {}
