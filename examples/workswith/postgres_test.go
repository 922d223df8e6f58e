//go:build works

package workswith_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestPostgres: queries, COPY, LISTEN and NOTIFY, and a query that is canceled, with a real server
// behind the proxy.
func TestPostgres(t *testing.T) {
	config, err := pgx.ParseConfig("postgres://postgres@" + proxy(t, postgresServer(t)) + "/postgres?sslmode=disable")
	require.NoError(t, err)
	dialer := &rdmanet.Dialer{Timeout: 5 * time.Second}
	config.DialFunc = dialer.DialContext
	// Canceled queries end at the server, and the conn stays usable. By default pgx closes it.
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: patience}
	}
	conn := connectPostgres(t, config)
	ctx := t.Context()

	t.Run("query", func(t *testing.T) {
		var sum int
		require.NoError(t, conn.QueryRow(ctx, "select sum(n) from generate_series(1, $1::int) n", 1000).Scan(&sum))
		assert.Equal(t, 500_500, sum)
	})
	t.Run("copy", func(t *testing.T) { testCopy(t, conn) })
	t.Run("notify", func(t *testing.T) {
		_, err := conn.Exec(ctx, "listen news")
		require.NoError(t, err)
		_, err = connectPostgres(t, config).Exec(ctx, "notify news, 'hello'")
		require.NoError(t, err)
		waiting, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		note, err := conn.WaitForNotification(waiting)
		require.NoError(t, err)
		assert.Equal(t, "hello", note.Payload)
	})
	// pgx asks for it by another conn, which it dials at the first one's RemoteAddr.
	t.Run("cancel", func(t *testing.T) {
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := conn.Exec(soon, "select pg_sleep(60)")
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, "57014", refused.Code, "query_canceled")
		assert.Less(t, time.Since(start), patience)
		require.NoError(t, conn.Ping(ctx))
	})
}

func connectPostgres(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close(context.Background())) })
	return conn
}

// testCopy sends 8 MiB by COPY, and reads them back.
func testCopy(t *testing.T, conn *pgx.Conn) {
	ctx := t.Context()
	_, err := conn.Exec(ctx, "create table lines (number int, line text)")
	require.NoError(t, err)
	const rows = 8192
	line := func(i int) string { return strings.Repeat(strconv.Itoa(i%10), 1024) }
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"lines"}, []string{"number", "line"},
		pgx.CopyFromSlice(rows, func(i int) ([]any, error) { return []any{i, line(i)}, nil }))
	require.NoError(t, err)
	require.EqualValues(t, rows, n)

	back := sha256.New()
	_, err = conn.PgConn().CopyTo(ctx, back, "copy (select * from lines order by number) to stdout")
	require.NoError(t, err)
	want := sha256.New()
	for i := range rows {
		fmt.Fprintf(want, "%d\t%s\n", i, line(i))
	}
	assert.Equal(t, want.Sum(nil), back.Sum(nil))
}

// postgresServer starts a PostgreSQL with a new cluster, which listens at a Unix socket only,
// and returns where the proxy reaches it. The server refuses root, and gets Debian's user then.
func postgresServer(t *testing.T) string {
	t.Helper()
	const port = "5432" // a part of the socket's name
	dir := socketDir(t)
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		as.Credential = credential(t, "postgres")
		require.NoError(t, os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)))
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(postgresProgram(t, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = as, dir
	out, err := initdb.CombinedOutput()
	require.NoError(t, err, "%s", out)

	cmd := exec.Command(postgresProgram(t, "postgres"), "-D", data, "-k", dir, "-p", port, "-c", "listen_addresses=", "-c", "fsync=off")
	cmd.SysProcAttr, cmd.Dir = as, dir
	socket := filepath.Join(dir, ".s.PGSQL."+port)
	startServer(t, cmd, socket)
	return "unix://" + socket
}

// postgresProgram finds a program of the newest version, which Debian keeps out of PATH.
func postgresProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	require.NoError(t, err)
	require.NotEmpty(t, found, "PostgreSQL is not installed: make test-works installs it")
	return slices.Max(found)
}

func credential(t *testing.T, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
