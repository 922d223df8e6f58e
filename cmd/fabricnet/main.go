// Fabricnet is the program of the module of that name. Its commands say what a machine offers
// and what is wrong with it, show the conns of a running program, copy files, and connect
// programs that know nothing of fabrics:
//
//	fabricnet info
//	fabricnet doctor
//	fabricnet ss localhost:6060
//	fabricnet copy --to storage7:9000 file
//	fabricnet proxy --listen tcp://localhost:8080 --to rdma://storage7:9000 --tls-ca ca.pem
//
// README.md has more.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	status := run(os.Args[1:], os.Stdout, os.Stderr)
	_ = rdmanet.DefaultTransport.Close() // or files of its endpoints may stay in /dev/shm for a while
	os.Exit(status)
}

// usageError is a mistake in how the program was called.
type usageError struct{ error }

// run returns the program's exit status: 2 if it was called wrongly.
func run(args []string, stdout, stderr io.Writer) int {
	err := app(stdout, stderr).Run(context.Background(), append([]string{"fabricnet"}, args...))
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "fabricnet:", printable.Lines(err.Error()))
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// app is a new one each time, since its flags keep what they were set to.
func app(stdout, stderr io.Writer) *cli.Command {
	root := &cli.Command{
		Name: "fabricnet", Usage: "what can be done with a fabric from a command line",
		Writer: stdout, ErrWriter: stderr, HideVersion: true,
		Commands: []*cli.Command{
			infoCommand(), doctorCommand(), ssCommand(), copyCommand(),
			proxyCommand(func(o *options) error {
				log := newLines(stderr)
				defer log.close()
				return runProxy(o, log)
			}),
			{
				Name: "version", Usage: "print the versions of the program and of libfabric",
				Action: func(_ context.Context, c *cli.Command) error { return print(c, version()) },
			},
		},
		Flags: []cli.Flag{&cli.BoolFlag{Name: "version", Usage: "the same as the command version", Local: true}},
		Action: func(_ context.Context, c *cli.Command) error {
			switch {
			case c.Args().Present():
				return usageError{fmt.Errorf("there is no command %q; see fabricnet --help", c.Args().First())}
			case c.Bool("version"):
				return print(c, version())
			}
			return usageError{errors.New("a command is missing; see fabricnet --help")}
		},
	}
	for _, c := range append(root.Commands, root) {
		c.OnUsageError = func(_ context.Context, _ *cli.Command, err error, _ bool) error { return usageError{err} }
	}
	return root
}

// print writes a line to a command's output.
func print(c *cli.Command, line string) error {
	_, err := fmt.Fprintln(c.Root().Writer, line)
	return err
}

// noArguments refuses what belongs to no flag.
func noArguments(c *cli.Command) error {
	if c.Args().Present() {
		return usageError{fmt.Errorf("%s: %q belongs to no flag; see --help", c.Name, c.Args().First())}
	}
	return nil
}

// version is that of the module, as go install or a checkout's commit says, of the core, if
// that is not the checkout's, and of what it runs with.
func version() string {
	own := "of no known version"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		own = info.Main.Version
		for _, m := range info.Deps {
			if m.Path == "github.com/seed202c38ff/fabricnet" && m.Version != "(devel)" {
				own += " (core " + m.Version + ")"
			}
		}
	}
	return fmt.Sprintf("fabricnet %s, %s, %s %s/%s", own, doctor.Library(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
