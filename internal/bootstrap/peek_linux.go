package bootstrap

import "golang.org/x/sys/unix"

// hangUp is the event of poll(2) that says that the peer will send no more.
const hangUp = unix.POLLRDHUP
