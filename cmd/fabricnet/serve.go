package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// runProxy serves until a signal comes. A second one ends the process at once.
func runProxy(o *options, log *lines) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signal.Ignore(syscall.SIGPIPE) // or the process would end along with whatever reads standard error
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // a second one finds the default action again, before the first one shows any effect
		cancel()
	}()
	p, l, err := o.open(ctx, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return err
	}
	defer l.Close()
	p.lostLines = &log.lost
	if o.metrics != "" {
		end, err := p.serveMetrics(ctx, o.metrics, o.metricsInsecure)
		if err != nil {
			return err
		}
		defer end()
	}
	p.serve(ctx, l)
	return nil
}

// open makes a proxy and a listener for it.
func (o *options) open(ctx context.Context, log *slog.Logger) (*proxy, net.Listener, error) {
	server, err := o.tls.server()
	if err != nil {
		return nil, nil, err
	}
	client, err := o.tls.client()
	if err != nil {
		return nil, nil, err
	}
	p := &proxy{
		to:        o.to,
		dialer:    &rdmanet.Dialer{TLSConfig: client, Logger: log},
		admission: admission{o.allow, o.allowClient},
		limits:    o.limits,
		log:       log,
	}
	at := o.from
	if at.network != "unix" {
		if at.address, err = literal(ctx, at.address); err != nil {
			return nil, nil, err
		}
		if !loopback(at.address) && !o.insecure && (at.network != "rdma" || server == nil) {
			return nil, nil, fmt.Errorf("--listen %v is open to other hosts without TLS: %w", o.from.String(), remedy(at.network))
		}
	}
	if err := p.misconfigured(); err != nil {
		return nil, nil, err
	}
	if o.to.network == "rdma" && client == nil && !own(o.to.address) {
		log.Warn("no TLS towards --to: nobody knows who answers there, and who else reads", "to", o.to.String())
	}
	l, err := at.listen(ctx, &rdmanet.ListenConfig{TLSConfig: server, Authorize: p.authorize, Logger: log})
	return p, l, err
}

// misconfigured returns the error that any dial over a fabric would fail with, such as that for a
// misspelt name in RDMANET_PROVIDERS. A dial that has no time finds such errors and no others.
func (p *proxy) misconfigured() error {
	if p.to.network != "rdma" {
		return nil
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.to.dial(over, p.dialer); errors.Is(err, rdmanet.ErrConfig) {
		return fmt.Errorf("--to %v: %w", p.to.String(), err)
	}
	return nil
}

// remedy returns what to do about an address that is not served.
func remedy(network string) error {
	if network == "rdma" {
		return fmt.Errorf("give --tls-cert and --tls-key, and --tls-client-ca to say who may come; listen at a loopback address; or accept that with --insecure")
	}
	return fmt.Errorf("there is TLS on the fabric side only: listen at a loopback address, or accept that with --insecure")
}
