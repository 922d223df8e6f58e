package bootstrap

import "crypto/tls"

// ALPN is the application protocol of a control connection over TLS. Where a certificate
// serves several protocols, it keeps a connection of one from being used for another. crypto/tls
// compares it if both sides name any.
const ALPN = "fabricnet/1"

// ServerTLS returns a listening side's copy of a configuration, with ALPN in place of the
// application protocols that it may have. It should be called once, since session tickets are
// tied to the copy. What GetConfigForClient returns is copied for each handshake; nil stays nil.
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

// ClientTLS returns a dialling side's copy of a configuration, likewise, for the server of that
// name. c must not be nil.
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
