// Fabricnet is the program of the module of that name:
//
//	fabricnet proxy -listen tcp://localhost:8080 -to rdma://storage7:9000 -tls-ca ca.pem
//
// connects what comes in on one side to the other: TCP or Unix sockets to a fabric, a fabric to
// sockets, or either to its own kind. README.md has more.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
)

const usage = `usage: fabricnet command [flags]

  proxy    connect TCP or Unix sockets to a fabric, and a fabric to them
  version  print the versions of the program and of libfabric

fabricnet proxy -help lists its flags.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the program's exit status: 2 if it was called wrongly.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch args[0] {
	case "proxy":
		o, err := parseProxy(args[1:], stderr)
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		if err != nil {
			fmt.Fprintln(stderr, "fabricnet proxy:", err)
			return 2
		}
		log := newLines(stderr)
		defer log.close()
		if err := runProxy(o, log); err != nil {
			fmt.Fprintln(log, "fabricnet proxy:", err)
			return 1
		}
		return 0
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, version())
		return 0
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stderr, usage)
		return 0
	}
	fmt.Fprintf(stderr, "fabricnet: there is no command %q\n\n%s", args[0], usage)
	return 2
}

// version returns the version of the module, as go install or a checkout's commit says, and those
// of what it runs with.
func version() string {
	own := "of no known version"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		own = info.Main.Version
	}
	return fmt.Sprintf("fabricnet %s, %s, %s %s/%s", own, libfabric(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
