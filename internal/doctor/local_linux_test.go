package doctor

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLocal(t *testing.T) {
	m, err := Local(t.Context())
	require.NoError(t, err)
	require.NoError(t, m.ProvidersErr)
	r := Examine(m)
	for _, f := range r.Findings {
		t.Logf("%+v", f)
		assert.NotEmpty(t, f.Found, f.Check)
		if f.Check == "libfabric" || f.Check == "providers" {
			assert.NotEqual(t, Fail, f.Verdict, f.Check)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Local(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	free, err := space(dir)
	require.NoError(t, err)
	assert.Positive(t, free)
	_, err = space(filepath.Join(dir, "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.NoError(t, usable(dir))
	assert.ErrorIs(t, usable(filepath.Join(dir, "absent")), os.ErrNotExist)
}
