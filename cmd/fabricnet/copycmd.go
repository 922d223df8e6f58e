package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/filecopy"
	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func copyCommand() *cli.Command {
	var files tlsFiles
	var allow prefixes
	return &cli.Command{
		Name: "copy", Usage: "copy files to another host over a fabric; the receiver compares their SHA-256 before they appear under their names",
		ArgsUsage: "FILE...",
		Description: "Either --serve, with --dir, or --to, with files. Whoever may connect may write files into the directory, over others, too, and\n" +
			"nowhere else; the bytes are clear text on the fabric, with TLS, too.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "serve", Usage: "receive files at this `host:port`, until SIGINT or SIGTERM"},
			&cli.StringFlag{Name: "dir", Value: ".", Usage: "with --serve: the `directory` for them"},
			&cli.StringFlag{Name: "to", Usage: "send files to this `host:port`"},
			&cli.DurationFlag{Name: "dial-timeout", Value: 10 * time.Second, Usage: "with --to: how long connecting may take"},
			&cli.GenericFlag{Name: "allow", Value: value{&allow}, Usage: "with --serve: take files from these `networks` only: 10.0.0.0/8,192.0.2.7"},
			&cli.BoolFlag{Name: "insecure", Usage: "with --serve: at addresses other than loopback without TLS"},
		}, tlsFlags(&files)...),
		Action: func(ctx context.Context, c *cli.Command) error {
			serve, to, twice := c.String("serve"), c.String("to"), repeated(c.Args().Slice())
			switch {
			case (serve == "") == (to == ""):
				return usageError{errors.New("copy: give --serve to receive files, or --to to send some")}
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
	return filecopy.Receive(ctx, l, root, func(line string) { _, _ = fmt.Fprintln(c.Root().ErrWriter, line) })
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
