package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// debugPath is where programs serve rdmadebug.Handler unless they choose otherwise.
const debugPath = "/debug/rdma"

func ssCommand() *cli.Command {
	return &cli.Command{
		Name: "ss", Usage: "show the conns and counters of a program that serves rdmadebug.Handler",
		ArgsUsage:   "HOST:PORT or URL",
		Description: "HOST:PORT stands for http://HOST:PORT" + debugPath + ".",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "limit", Value: -1, HideDefault: true, Usage: "show at most so many conns; the program's own limit, 1000, if it is missing"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "how long the program may take to answer"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Len() != 1 {
				return usageError{errors.New("ss: name one program, as HOST:PORT or URL")}
			}
			format := "text"
			if c.Bool("json") {
				format = "json"
			}
			from, err := debugURL(c.Args().First(), format, c.Int("limit"))
			if err != nil {
				return usageError{fmt.Errorf("ss: %w", err)}
			}
			ctx, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
			defer cancel()
			return show(ctx, from, c.Root().Writer)
		},
	}
}

// debugURL says where to ask.
func debugURL(at, format string, limit int) (string, error) {
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	u, err := url.Parse(at)
	switch {
	case err != nil:
		return "", err
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("%q is neither HOST:PORT nor a URL of http or https", at)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = debugPath
	}
	q := u.Query()
	q.Set("format", format)
	if limit >= 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// show prints what the program answers.
func show(ctx context.Context, from string, w io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden:
		return fmt.Errorf("%s: %s; at a loopback address rdmadebug.Handler answers those who ask for localhost or an IP address", from, printable.Text(response.Status))
	default:
		return fmt.Errorf("%s: %s; is that where rdmadebug.Handler is served?", from, printable.Text(response.Status))
	}
	if response.Header.Get("Fabricnet-Debug") == "" {
		return fmt.Errorf("%s: what answers is not rdmadebug.Handler; is that served at another path?", from)
	}
	_, err = io.Copy(&printable.Writer{W: w}, response.Body) // it is another program's
	return err
}
