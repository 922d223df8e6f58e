package rdmanet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestHTTPRange: net/http serves parts of a file, which it lets the conn read from the file.
func TestHTTPRange(t *testing.T) {
	const size = 3_000_001
	name := filepath.Join(t.TempDir(), "file")
	rdmatest.WriteRandom(t, name, size)
	all, err := os.ReadFile(name)
	require.NoError(t, err)
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		serveHTTP(t, l, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f, err := os.Open(name)
			if !assert.NoError(t, err) {
				return
			}
			defer f.Close()
			w.Header().Set("ETag", `"one"`)
			http.ServeContent(w, r, "file.bin", time.Time{}, f)
		})})
		client := newHTTPClient(t, d, nil)
		for i, tt := range []struct {
			ranges, ifRange string
			status          int
			want            [][]byte
		}{
			{"", "", http.StatusOK, [][]byte{all}},
			{"bytes=0-0", "", http.StatusPartialContent, [][]byte{all[:1]}},
			{"bytes=100-1999999", "", http.StatusPartialContent, [][]byte{all[100:2_000_000]}},
			{"bytes=2999999-", "", http.StatusPartialContent, [][]byte{all[2_999_999:]}},
			{"bytes=-70000", "", http.StatusPartialContent, [][]byte{all[size-70_000:]}},
			{"bytes=0-9,1000-999999,-5", "", http.StatusPartialContent, [][]byte{all[:10], all[1000:1_000_000], all[size-5:]}},
			{"bytes=5-9", `"one"`, http.StatusPartialContent, [][]byte{all[5:10]}},
			{"bytes=5-9", `"two"`, http.StatusOK, [][]byte{all}},
			{"bytes=3000001-", "", http.StatusRequestedRangeNotSatisfiable, nil},
		} {
			what := fmt.Sprintf("%q %q", tt.ranges, tt.ifRange)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, baseURL(l), nil)
			require.NoError(t, err)
			req.Header.Set("Range", tt.ranges)
			req.Header.Set("If-Range", tt.ifRange)
			resp, body, over := traced(t, client, req)
			assert.Equal(t, i > 0, over.Reused, "%s: nothing comes after the last part", what)
			assert.Equal(t, tt.status, resp.StatusCode, what)
			if tt.want == nil {
				assert.Equal(t, fmt.Sprintf("bytes */%d", size), resp.Header.Get("Content-Range"), what)
				continue
			}
			got := bodyParts(t, resp.Header.Get("Content-Type"), body)
			require.Len(t, got, len(tt.want), what)
			for i, want := range tt.want {
				assert.True(t, bytes.Equal(want, got[i]), "%s part %d: %d bytes", what, i, len(got[i]))
			}
		}
	})
}

// bodyParts takes a multipart body apart, and returns any other as it is.
func bodyParts(t *testing.T, contentType string, body []byte) (list [][]byte) {
	t.Helper()
	kind, params, err := mime.ParseMediaType(contentType)
	require.NoError(t, err)
	if !strings.HasPrefix(kind, "multipart/") {
		return [][]byte{body}
	}
	for r := multipart.NewReader(bytes.NewReader(body), params["boundary"]); ; {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		text, err := io.ReadAll(p)
		require.NoError(t, err)
		list = append(list, text)
	}
}
