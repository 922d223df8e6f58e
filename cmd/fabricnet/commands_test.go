package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmadebug"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// called runs the program in this process.
func called(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(args, &out, &err)
	return status, out.String(), err.String()
}

func TestInfo(t *testing.T) {
	status, text, _ := called("info", "--local", "127.0.0.1")
	assert.Zero(t, status)
	assert.Contains(t, text, "for conns at 127.0.0.1:")
	status, text, _ = called("info", "--local", "127.0.0.1", "--providers", "net,tcp;ofi_rxm", "--json")
	assert.Zero(t, status)
	var inventory doctor.Inventory
	require.NoError(t, json.Unmarshal([]byte(text), &inventory))
	require.Len(t, inventory.Choices, 1)
	assert.NotEmpty(t, inventory.Choices[0].Providers)
	status, _, text = called("info", "--local", "nonsense")
	assert.Equal(t, 2, status)
	assert.Contains(t, text, "nonsense")
	status, _, text = called("info", "--providers", "tpc")
	assert.Equal(t, 1, status)
	assert.Contains(t, text, "unknown provider")
}

// TestInfoOfThisMachine: the inventory has what every machine with libfabric has.
func TestInfoOfThisMachine(t *testing.T) {
	status, text, told := called("info", "--local", "127.0.0.1", "--json")
	require.Zero(t, status, told)
	var inv doctor.Inventory
	require.NoError(t, json.Unmarshal([]byte(text), &inv))
	assert.NotEmpty(t, inv.Compiled)
	assert.Equal(t, "libfabric "+inv.InUse, doctor.Library())
	require.Len(t, inv.Choices, 1)
	first := inv.Choices[0].Providers[0]
	assert.Equal(t, "shm", first.Provider)
	assert.Equal(t, 1, first.Rank)

	status, text, told = called("info", "--providers", "shm")
	require.Zero(t, status, told)
	assert.Contains(t, text, "for conns at 127.0.0.1")
	assert.Contains(t, text, "not in the list of providers")
}

// TestDoctor: whatever is wrong with this machine is reported, and decides the exit status.
func TestDoctor(t *testing.T) {
	status, text, _ := called("doctor", "--json")
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	assert.NotEmpty(t, r.Findings)
	assert.Equal(t, r.Verdict == doctor.Fail, status == 1)

	t.Setenv("RDMANET_PROVIDERS", "tpc")
	status, text, told := called("doctor")
	assert.Equal(t, 1, status)
	assert.Contains(t, text, "fail")
	assert.Contains(t, told, doctor.ErrFailed.Error())
}

// TestSS: the conns of another program are shown, and nothing that it says does anything to a
// terminal.
func TestSS(t *testing.T) {
	tr := new(rdmanet.Transport)
	defer tr.Close()
	lc := rdmanet.ListenConfig{Transport: tr}
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	c, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	mux := http.NewServeMux()
	mux.Handle(debugPath, rdmadebug.Handler(tr))
	mux.HandleFunc("/other", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	mux.HandleFunc("/forbidden", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	mux.HandleFunc("/nasty", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Fabricnet-Debug", "1")
		fmt.Fprint(w, "a\x1b[2Jb\tc\u009b\u202e\n")
		_ = http.NewResponseController(w).Flush() // of a rune, first one part, and then the rest
		fmt.Fprint(w, "d\xc3")
		_ = http.NewResponseController(w).Flush()
		fmt.Fprint(w, "\xa9\n")
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			fmt.Fprint(c, "HTTP/1.1 404 a\x1b[2J\u202e\r\n\r\n")
			assert.NoError(t, c.Close())
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://")

	for _, where := range []string{at, server.URL, server.URL + debugPath} {
		status, text, told := called("ss", where)
		require.Zero(t, status, told)
		assert.Contains(t, text, "STATE")
		assert.Contains(t, text, c.LocalAddr().String())
	}
	status, text, _ := called("ss", "--json", "--limit", "1", at)
	require.Zero(t, status)
	var page struct{ Conns []any }
	require.NoError(t, json.Unmarshal([]byte(text), &page))
	assert.Len(t, page.Conns, 1)
	_, text, _ = called("ss", server.URL+"/nasty")
	assert.Equal(t, "a?[2Jb\tc??\ndé\n", text)

	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"ss":                      {2, "name one program"},
		"ss a b":                  {2, "name one program"},
		"ss ftp://a":              {2, "neither HOST:PORT nor"},
		"ss --limit x a":          {2, "--limit x"},
		"ss " + at + "/elsewhere": {1, "is that where rdmadebug.Handler is served"},
		"ss " + at + "/status":    {1, "404 a?[2J?;"},
		"ss " + at + "/forbidden": {1, "403 Forbidden; at a loopback address rdmadebug.Handler answers those who ask for localhost"},
		"ss " + at + "/other":     {1, "served at another path"},
		"copy --to a:1 a/b c/b":   {2, "two files would be \"b\""},
		"ss 127.0.0.1:1":          {1, "connection refused"},
	} {
		if args == "ss --limit x a" {
			want.text = "limit"
		}
		status, _, told := called(strings.Fields(args)...)
		assert.Equal(t, want.status, status, args)
		assert.Contains(t, told, want.text, args)
	}
}

// receiver starts another process that receives files. end ends it in good order.
func receiver(t *testing.T, dir string, flags ...string) (at string, report *lockedBuffer, end func()) {
	t.Helper()
	p, kill := program(t)
	t.Cleanup(kill)
	p.Args = append(append(p.Args[:1], "copy", "--serve", testenv.Address(), "--dir", dir), flags...)
	stdout, err := p.StdoutPipe()
	require.NoError(t, err)
	report = new(lockedBuffer)
	p.Stderr = io.MultiWriter(t.Output(), report)
	require.NoError(t, p.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	m := regexp.MustCompile(`receiving into .* at (\S+)`).FindStringSubmatch(line)
	require.NotNil(t, m, line)
	return m[1], report, func() {
		t.Helper()
		rdmanet.DefaultTransport.CloseIdle()
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		_, _ = io.Copy(io.Discard, stdout)
		assert.NoError(t, p.Wait())
	}
}

// TestCopy: files go from one process to another, which ends in good order at a signal.
func TestCopy(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	at, report, end := receiver(t, dir)

	want := map[string][]byte{
		"a": bytes.Repeat([]byte("text"), 100_000), "b": nil,
		"c\xfe": []byte("one"), "c\xff": []byte("another"), "d\x1b[2J\nfrom e": []byte("a third"),
	}
	args := []string{"copy", "--to", at}
	for name, text := range want {
		path := filepath.Join(from, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		args = append(args, path)
	}
	status, text, told := called(args...)
	require.Zero(t, status, told)
	assert.Contains(t, text, "a: 400000 bytes in ")
	assert.Contains(t, text, `"d\x1b[2J\nfrom e": 7 bytes in `)
	assert.NotContains(t, text, "\x1b")
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(text, got), name)
	}
	status, text, told = called("copy", "--to", at, filepath.Join(from, "c"), filepath.Join(from, "a"))
	assert.Equal(t, 1, status)
	assert.Contains(t, told, "no such file")
	assert.Contains(t, text, "a: 400000 bytes in ", "the others are sent")
	end()
	assert.Contains(t, report.String(), `: "d\x1b[2J\nfrom e"`)
	assert.NotContains(t, report.String(), "\x1b")
	assert.Equal(t, len(want)+1, strings.Count(report.String(), "\n"), "a line for each file")
}

// TestCopyBounds: what a receiver refuses is told to the sender, with the flag that allows it.
func TestCopyBounds(t *testing.T) {
	from := t.TempDir()
	dot, large := filepath.Join(from, ".bashrc"), filepath.Join(from, "large")
	require.NoError(t, os.WriteFile(dot, nil, 0o600))
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	for flags, want := range map[string]map[string]string{
		"":             {dot: "--dot-files", large: ""},
		"--dot-files":  {dot: "", large: ""},
		"--max-size 1": {large: "--max-size of the receiver allows 1048576"},
		"--max-size 0": {large: ""},
	} {
		t.Run(flags, func(t *testing.T) {
			dir := t.TempDir()
			at, _, end := receiver(t, dir, strings.Fields(flags)...)
			for file, refusal := range want {
				status, _, told := called("copy", "--to", at, file)
				if refusal == "" {
					assert.Zero(t, status, told)
					assert.FileExists(t, filepath.Join(dir, filepath.Base(file)))
				} else {
					assert.Equal(t, 1, status)
					assert.Contains(t, told, refusal)
					assert.NoFileExists(t, filepath.Join(dir, filepath.Base(file)))
				}
			}
			end()
		})
	}
}

// TestCopyIdle: a sender that says nothing is told which flag ends it.
func TestCopyIdle(t *testing.T) {
	at, report, end := receiver(t, t.TempDir(), "--idle-timeout", "50ms")
	c, err := rdmanet.Dial("rdma", at)
	require.NoError(t, err)
	answer, err := io.ReadAll(limited(t, c.(conn)))
	require.NoError(t, err)
	assert.Contains(t, string(answer), "--idle-timeout")
	require.NoError(t, c.Close())
	end()
	assert.Contains(t, report.String(), "--idle-timeout")
}

// TestCopyHostile: a receiver's verdict does nothing to the terminal, and is part of one line.
func TestCopyHostile(t *testing.T) {
	l, err := rdmanet.Listen("rdma", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, `{"error":"a\u001b[2J\nfabricnet: b\u202e"}`)
			_, copyErr := io.Copy(io.Discard, c)
			err = errors.Join(err, copyErr, c.Close())
		}
		served <- err
	}()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	status, _, told := called("copy", "--to", l.Addr().String(), file)
	assert.Equal(t, 1, status)
	assert.Equal(t, "fabricnet: "+file+": receiver: a?[2J?fabricnet: b?\n", told)
	require.NoError(t, <-served)
}

// TestCopyInterrupted: a signal ends the whole copy, not only that of one file.
func TestCopyInterrupted(t *testing.T) {
	l, err := rdmanet.Listen("rdma", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 32<<20), 0o600)) // more than is taken without being read
	p, kill := program(t)
	defer kill()
	p.Args = append(p.Args[:1], "copy", "--to", l.Addr().String(), file, file+"-missing")
	var told bytes.Buffer
	p.Stderr = &told
	require.NoError(t, p.Start())
	c, err := l.Accept()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, p.Wait(), &exit)
	assert.Equal(t, 1, exit.ExitCode())
	assert.Contains(t, told.String(), "context canceled")
	assert.NotContains(t, told.String(), "missing")
	assert.NoError(t, c.Close())
}

func TestCopyFlags(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"":                                    {2, "--serve to receive files, or --to"},
		"file":                                {2, "--serve to receive files, or --to"},
		"--serve :0 --to x:1":                 {2, "--serve to receive files, or --to"},
		"--serve 127.0.0.1:0 file":            {2, `"file" is a file to send`},
		"--to 127.0.0.1:1":                    {2, "name the files"},
		"--to 127.0.0.1:1 --tls-cert c f":     {2, "go together"},
		"--to 127.0.0.1:1 --allow here f":     {2, "neither a network"},
		"--to 127.0.0.1:1 --allow ::1 f":      {2, "--allow is for --serve"},
		"--to 127.0.0.1:1 --dir . f":          {2, "--dir and --insecure are for --serve"},
		"--to 127.0.0.1:1 --insecure f":       {2, "--dir and --insecure are for --serve"},
		"--serve :0 --dial-timeout 1s":        {2, "--dial-timeout is for --to"},
		"--to x:1 --dot-files f":              {2, "--dot-files is for --serve"},
		"--to x:1 --max-size 1 f":             {2, "--max-size is for --serve"},
		"--to x:1 --idle-timeout 1s f":        {2, "--idle-timeout is for --serve"},
		"--serve :0 --max-size -1":            {2, "--max-size must be a number of MiB"},
		"--serve :0 --max-size 8796093022208": {2, "--max-size must be a number of MiB"},
		"--serve :0 --max-conns -1":           {2, "--max-conns must not be negative"},
		"--serve :0 --max-conns-per-host -1":  {2, "--max-conns-per-host must not be negative"},
		"--serve :0 --idle-timeout -1s":       {2, "--idle-timeout must not be negative"},
		"--serve :0 --tls-ca ca":              {2, "are for --to"},
		"--serve :0 --tls-server-name s":      {2, "are for --to"},
		"--to x:1 --tls-server-name s f":      {2, "needs --tls-ca or --tls-cert"},
		"--serve :0 --tls-client-ca ca":       {2, "needs --serve, --tls-cert"},
		"--to x:1 --tls-client-ca ca f":       {2, "needs --serve, --tls-cert"},
		"--serve 192.0.2.1:0":                 {1, "open to other hosts without TLS"},
		"--serve 192.0.2.1:0 --insecure":      {1, "cannot assign"},
		"--serve 127.0.0.1:0 --dir /none":     {1, "/none"},
		"--to 127.0.0.1:1 /etc/os-release":    {1, "connection refused"},
		"--to 127.0.0.1:1 --tls-ca /none f":   {1, "--tls-ca"},
	} {
		status, _, told := called(append([]string{"copy"}, strings.Fields(args)...)...)
		assert.Equal(t, want.status, status, args)
		assert.Contains(t, told, want.text, args)
	}
}
