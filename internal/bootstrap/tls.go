package bootstrap

import "crypto/tls"

// ALPN is the application protocol of a control connection over TLS. It keeps a certificate that
// serves several protocols from being used by one for another; crypto/tls compares it
// where both sides name any.
const ALPN = "fabricnet/1"

// ServerTLS is a listening side's copy of a configuration, with ALPN instead of the
// application protocols that it may have. It is made once: session tickets are tied to
// it. What GetConfigForClient returns is copied for each handshake; nil stays nil.
func ServerTLS(c *tls.Config) *tls.Config {
	c = withALPN(c)
	if c == nil || c.GetConfigForClient == nil {
		return c
	}
	choose := c.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		return withALPN(chosen), err
	}
	return c
}

// ClientTLS is a dialling side's copy of a configuration, likewise, for that server.
func ClientTLS(c *tls.Config, serverName string) *tls.Config {
	c = withALPN(c)
	c.ServerName = serverName
	return c
}

func withALPN(c *tls.Config) *tls.Config {
	if c != nil {
		c = c.Clone()
		c.NextProtos = []string{ALPN}
	}
	return c
}
