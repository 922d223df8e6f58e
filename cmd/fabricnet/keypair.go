package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// keyPair is a certificate and its key in PEM files. Each handshake looks whether they have changed,
// so that renewed ones count without a restart, but parses them only then.
type keyPair struct {
	cert, key string

	mu     sync.Mutex // guards what follows
	parsed *tls.Certificate
	files  [2]os.FileInfo // as they were before they were read
	read   time.Time
}

// current returns what the files contain now.
func (p *keyPair) current() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var files [2]os.FileInfo
	for i, name := range [...]string{p.cert, p.key} {
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		files[i] = info
	}
	if p.parsed != nil && p.unchanged(files[0], p.files[0]) && p.unchanged(files[1], p.files[1]) {
		return p.parsed, nil
	}
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	p.parsed, p.files, p.read = &pair, files, now
	return p.parsed, nil
}

// mtimeStep is longer than the steps of modification times on any file system.
const mtimeStep = 3 * time.Second

// unchanged reports whether a file is the one that was read. A file that had just been written then
// could have been written again without a later time.
func (p *keyPair) unchanged(now, then os.FileInfo) bool {
	return os.SameFile(now, then) && now.ModTime().Equal(then.ModTime()) && now.Size() == then.Size() &&
		p.read.Sub(then.ModTime()) > mtimeStep
}
