package framing

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Derive returns HMAC-SHA256 over a label and what follows it, with the secret as the key: what
// shows that somebody knows the secret, and does not give it away.
func Derive(secret [16]byte, label string, more ...[]byte) (sum [32]byte) {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte(label))
	for _, b := range more {
		mac.Write(b)
	}
	mac.Sum(sum[:0])
	return sum
}
