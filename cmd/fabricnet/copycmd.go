package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/filecopy"
	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func copyCommand() *cli.Command {
	var files tlsFiles
	var allow prefixes
	bounds := receiverFlags()
	return &cli.Command{
		Name: "copy", Usage: "copy files to another host over a fabric; the receiver compares their SHA-256 before they appear under their names",
		ArgsUsage: "FILE...",
		Description: "Either --serve, with --dir, or --to, with files. Whoever may connect may write files into the directory, over others, too, and\n" +
			"nowhere else; the bytes are clear text on the fabric, with TLS, too. A file that is replaced keeps its mode.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "serve", Usage: "receive files at this `host:port`, until SIGINT or SIGTERM"},
			&cli.StringFlag{Name: "dir", Value: ".", Usage: "with --serve: the `directory` for them"},
			&cli.StringFlag{Name: "to", Usage: "send files to this `host:port`"},
			&cli.DurationFlag{Name: "dial-timeout", Value: 10 * time.Second, Usage: "with --to: how long connecting may take"},
			&cli.GenericFlag{Name: "allow", Value: value{&allow}, Usage: "with --serve: take files from these `networks` only: 10.0.0.0/8,192.0.2.7"},
			&cli.BoolFlag{Name: "insecure", Usage: "with --serve: at addresses other than loopback without TLS"},
		}, slices.Concat(bounds, tlsFlags(&files))...),
		Action: func(ctx context.Context, c *cli.Command) error {
			serve, to, twice := c.String("serve"), c.String("to"), repeated(c.Args().Slice())
			switch {
			case (serve == "") == (to == ""):
				return usageError{errors.New("copy: give either --serve to receive files, or --to to send some")}
			case serve != "" && c.Args().Present():
				return usageError{fmt.Errorf("copy: %q is a file to send, and --serve receives", c.Args().First())}
			case to != "" && !c.Args().Present():
				return usageError{errors.New("copy: name the files to send")}
			case twice != "":
				return usageError{fmt.Errorf("copy: two files would be %q at the receiver", twice)}
			case to != "" && len(allow) > 0:
				return usageError{errors.New("copy: --allow is for --serve")}
			case to != "" && (c.IsSet("dir") || c.IsSet("insecure")):
				return usageError{errors.New("copy: --dir and --insecure are for --serve")}
			case serve != "" && c.IsSet("dial-timeout"):
				return usageError{errors.New("copy: --dial-timeout is for --to")}
			}
			for _, f := range bounds {
				if name := f.Names()[0]; to != "" && c.IsSet(name) {
					return usageError{fmt.Errorf("copy: --%s is for --serve", name)}
				}
			}
			if err := checkReceiver(c); err != nil {
				return usageError{fmt.Errorf("copy: %w", err)}
			}
			if err := files.check(serve != "", to != "", "--serve", "--to"); err != nil {
				return usageError{fmt.Errorf("copy: %w", err)}
			}
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills
			if serve != "" {
				return receiveFiles(ctx, c, serve, &files, admission{networks: allow}, c.Bool("insecure"))
			}
			return sendFiles(ctx, c, to, &files)
		},
	}
}

// receiverFlags bound what senders may do.
func receiverFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "dot-files", Usage: "with --serve: take files whose names begin with a dot, too"},
		&cli.Int64Flag{Name: "max-size", Value: 16 << 10, Usage: "with --serve: the largest file, in `MiB`; 0: no bound"},
		&cli.IntFlag{Name: "max-conns", Value: 64, Usage: "with --serve: refuse senders that come while there are so many; 0: no bound"},
		perHostFlag("with --serve: "),
		&cli.DurationFlag{Name: "idle-timeout", Value: time.Minute, Usage: "with --serve: refuse senders that do nothing for so long; 0: never"},
	}
}

// checkReceiver finds bounds that make no sense.
func checkReceiver(c *cli.Command) error {
	switch {
	case c.Int64("max-size") < 0 || c.Int64("max-size") > math.MaxInt64>>20:
		return errors.New("--max-size must be a number of MiB, or 0")
	case c.Int("max-conns") < 0:
		return errors.New("--max-conns must not be negative")
	case c.Int("max-conns-per-host") < 0:
		return errors.New("--max-conns-per-host must not be negative")
	case c.Duration("idle-timeout") < 0:
		return errors.New("--idle-timeout must not be negative")
	}
	return nil
}

// repeated returns a name that two of the files would have at the receiver, "" if there is none.
func repeated(files []string) string {
	seen := make(map[string]bool)
	for _, file := range files {
		name := filepath.Base(file)
		if seen[name] {
			return name
		}
		seen[name] = true
	}
	return ""
}

func receiveFiles(ctx context.Context, c *cli.Command, at string, files *tlsFiles, in admission, insecure bool) error {
	server, err := files.server()
	if err != nil {
		return err
	}
	address, err := literal(ctx, at)
	if err != nil {
		return err
	}
	if !loopback(address) && !insecure && server == nil {
		return fmt.Errorf("--serve %s is open to other hosts without TLS: %w", at, remedy("rdma"))
	}
	root, err := os.OpenRoot(c.String("dir"))
	if err != nil {
		return err
	}
	defer root.Close()
	lc := rdmanet.ListenConfig{TLSConfig: server, Authorize: in.authorize}
	l, err := lc.Listen(ctx, "rdma", address)
	if err != nil {
		return err
	}
	if err := print(c, fmt.Sprintf("receiving into %s at %s", c.String("dir"), l.Addr())); err != nil {
		return errors.Join(err, l.Close())
	}
	r := &filecopy.Receiver{
		Root: root, Report: func(line string) { _, _ = fmt.Fprintln(c.Root().ErrWriter, line) },
		Senders: connlimit.Limiter{Max: c.Int("max-conns"), MaxPerHost: perHost(c)},
		MaxSize: c.Int64("max-size") << 20, Idle: c.Duration("idle-timeout"), DotFiles: c.Bool("dot-files"),
	}
	return r.Serve(ctx, l)
}

func sendFiles(ctx context.Context, c *cli.Command, to string, files *tlsFiles) error {
	client, err := files.client()
	if err != nil {
		return err
	}
	d := &rdmanet.Dialer{TLSConfig: client, Timeout: c.Duration("dial-timeout")}
	var failed []error
	list := c.Args().Slice()
	for i, file := range list {
		sent, err := filecopy.Send(ctx, d, to, file)
		if err == nil {
			if err := print(c, sent.String()); err != nil {
				return errors.Join(append(failed, err)...)
			}
			continue
		}
		failed = append(failed, fmt.Errorf("%s: %w", printable.Name(file), err))
		if dial := new(net.OpError); ctx.Err() != nil || errors.As(err, &dial) && dial.Op == "dial" {
			if left := len(list) - i - 1; left > 0 { // they would fail, too
				failed = append(failed, fmt.Errorf("files not tried: %d", left))
			}
			break
		}
	}
	return errors.Join(failed...)
}
