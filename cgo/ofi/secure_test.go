//go:build linux && cgo

package ofi

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDistrusts: internal/systemtest has the test that a program with more rights than its user
// removes these variables.
func TestDistrusts(t *testing.T) {
	for entry, want := range map[string]bool{
		"FI_PROVIDER_PATH=/tmp":       true,
		"FI_=":                        true,
		"RDMANET_LIBFABRIC=/tmp/a.so": true,
		"PSM3_LOG_FILENAME=/tmp/log":  true,
		"IPATH_DEBUG_FILENAME=/tmp/a": true,
		"IBV_DRIVERS=/tmp/a":          true,
		"IBV_FORK_SAFE=1":             false,
		"IBV_DRIVERS_=/tmp/a":         false,
		"CUDA_VISIBLE_DEVICES=0":      false,
		"XFI_PROVIDER_PATH=/tmp":      false,
		"A=FI_PROVIDER_PATH=/tmp":     false,
		"PATH=/usr/bin":               false,
	} {
		assert.Equal(t, want, distrusts(entry), entry)
	}
}

// TestVariablesOfLibraries: no library that libfabric has loaded here, and no driver that libibverbs
// would load for a device, knows a variable which looks as if it named a file, and is not among those
// that are removed. The C library, with its modules, drops its own.
func TestVariablesOfLibraries(t *testing.T) {
	_, err := GetInfo(Hints{})
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	file := regexp.MustCompile(`\x00([A-Z][A-Z0-9]*_(?:[A-Z0-9]+_)*(?:FILE|FILENAME|[A-Z]*FILE|PATH|DIR|DRIVERS|ROOT|LIB|LIBRARY))\x00`)
	ofC := regexp.MustCompile(`^(libc\.|ld-|libnss_)`)
	looked := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		at := strings.IndexByte(line, '/')
		if at < 0 || !strings.Contains(line, ".so") {
			continue
		}
		name := strings.TrimSpace(line[at:])
		if ofC.MatchString(filepath.Base(name)) {
			continue
		}
		looked[name] = true
		drivers, err := filepath.Glob(filepath.Join(filepath.Dir(name), "libibverbs", "*.so"))
		require.NoError(t, err)
		for _, driver := range drivers {
			driver, err = filepath.EvalSymlinks(driver)
			require.NoError(t, err)
			looked[driver] = true
		}
	}
	for name := range looked {
		code, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range file.FindAllSubmatch(bytes.ReplaceAll(code, []byte{0}, []byte{0, 0}), -1) {
			assert.True(t, distrusts(string(m[1])+"="), "%s, in %s", m[1], name)
		}
	}
	path, err := filepath.EvalSymlinks(LibraryPath())
	require.NoError(t, err)
	assert.Contains(t, looked, path)
}
