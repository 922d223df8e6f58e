//go:build linux && cgo

package ofi

import (
	"debug/elf"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program must start where there is no libfabric.
func TestNotLinked(t *testing.T) {
	name, err := os.Executable()
	require.NoError(t, err)
	exe, err := elf.Open(name)
	require.NoError(t, err)
	defer exe.Close()
	libraries, err := exe.ImportedLibraries()
	require.NoError(t, err)
	require.Contains(t, strings.Join(libraries, " "), "libc.so")
	assert.NotContains(t, strings.Join(libraries, " "), "libfabric")
}

// Who calls the dynamic linker by its name has a program that is not static, too.
func TestLinkerByName(t *testing.T) {
	name, err := os.Executable()
	require.NoError(t, err)
	exe, err := elf.Open(name)
	require.NoError(t, err)
	defer exe.Close()
	linker, err := exe.Section(".interp").Data()
	require.NoError(t, err)
	out, err := exec.Command(strings.Trim(string(linker), "\x00"), name, "-test.run=^TestABI$", "-test.v").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestABI ")
}

func TestSearch(t *testing.T) {
	const absent = "/nonexistent/libfabric.so.1"
	lib, err := load()
	require.NoError(t, err)

	t.Run("chosen", func(t *testing.T) {
		t.Setenv(libraryVar, lib.path)
		again, err := search()
		require.NoError(t, err)
		assert.Equal(t, lib, again)
	})
	t.Run("chosen but absent", func(t *testing.T) {
		t.Setenv(libraryVar, absent) // although places lists one that would do
		_, err := search()
		require.ErrorAs(t, err, new(*LoadError))
		assert.ErrorContains(t, err, libraryVar+": "+absent+": cannot open shared object file")
	})
	t.Run("chosen but another", func(t *testing.T) {
		t.Setenv(libraryVar, "libc.so.6")
		_, err := search()
		assert.ErrorContains(t, err, "libc.so.6: no fi_getinfo of FABRIC_1.")
	})

	defer func(list []string) { places = list }(places)
	t.Setenv(libraryVar, "")
	t.Run("nowhere", func(t *testing.T) {
		places = []string{"libfabric-is-absent.so", absent}
		_, err := search()
		require.ErrorAs(t, err, new(*LoadError))
		for _, says := range append(places, "libfabric1", "Fedora", libraryVar, "cannot open shared object file") {
			assert.ErrorContains(t, err, says)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		places = []string{absent, lib.path}
		again, err := search()
		require.NoError(t, err)
		assert.Equal(t, lib, again)
	})
}

// The functions are looked up in the newest ABI that both the headers and the library have.
func TestABI(t *testing.T) {
	lib, err := load()
	require.NoError(t, err)
	want := 0
	for _, since := range []struct{ major, minor, abi int }{{1, 17, 3}, {1, 20, 7}, {2, 0, 8}, {2, 5, 9}} {
		if int(lib.api()) >= since.major<<16|since.minor {
			want = since.abi
		}
	}
	assert.Equal(t, want, lib.abi)
}
