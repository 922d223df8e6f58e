//go:build browser

package browser

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmadebug"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// dials is the number of conns of which the page lists both ends.
const dials = 3

// serve serves the page of a Transport with conns over the first provider, which have
// carried data.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	tr := new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	providers := testenv.Providers()[:1]
	lc := rdmanet.ListenConfig{Transport: tr, Providers: providers}
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	d := &rdmanet.Dialer{Transport: tr, Providers: providers}
	for i := range dials {
		c, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { abort(c); abort(s) })
		go func() { _, _ = c.Write(make([]byte, 200<<10<<(4*i))) }() // the last ones have to wait
		_, err = io.ReadFull(s, make([]byte, 100<<10))
		require.NoError(t, err)
	}
	srv := httptest.NewServer(rdmadebug.Handler(tr))
	t.Cleanup(srv.Close)
	return srv
}

func abort(c net.Conn) {
	_ = c.(*rdmanet.Conn).SetLinger(0)
	_ = c.Close()
}

// start starts a browser with a profile of its own.
func start(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	require.NotEmpty(t, path, "there is no Chromium: ./scripts/deps.sh browser installs it")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	return ctx
}

// complaints collects what the browser complains about: errors of scripts, violations of the
// policy, missing resources, and requests to other hosts.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) listen(ctx context.Context, origin string) error {
	return chromedp.Listen(ctx, func(ev any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			c.list = append(c.list, ev.Entry.Text)
		case *runtime.EventExceptionThrown:
			c.list = append(c.list, ev.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			c.list = append(c.list, fmt.Sprint("console.", ev.Type))
		case *network.EventRequestWillBeSent:
			if u := ev.Request.URL; len(u) < len(origin) || u[:len(origin)] != origin {
				if u != "data:," {
					c.list = append(c.list, "asks for "+u)
				}
			}
		}
	})
}

func (c *complaints) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.list...)
}

// seen is what a script finds on the page.
type seen struct {
	Conns, Metrics int
	Width          int // of the content; if it is more than the window's, the page scrolls
	Window         int
	Font           string // from the style sheet
	Contrast       float64
	Dark           bool
}

// look measures the contrast of the dimmest text, as defined by WCAG 2.
const look = `(() => {
	const lum = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const ctx = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
	const rgb = color => { ctx.fillStyle = color; ctx.fillRect(0, 0, 1, 1); return [...ctx.getImageData(0, 0, 1, 1).data].slice(0, 3); };
	const dark = matchMedia('(prefers-color-scheme: dark)').matches;
	const back = lum(rgb('Canvas') && (() => { const d = document.createElement('div'); d.style.backgroundColor = 'Canvas'; document.body.append(d);
		const v = rgb(getComputedStyle(d).backgroundColor); d.remove(); return v; })());
	const text = [...document.querySelectorAll('.dim, .warn, td')].map(e => lum(rgb(getComputedStyle(e).color)));
	return {
		Conns: document.querySelectorAll('#conns tbody tr').length, Metrics: document.querySelectorAll('#metrics tbody tr').length,
		Width: document.documentElement.scrollWidth, Window: innerWidth, Font: getComputedStyle(document.body).fontFamily, Dark: dark,
		Contrast: Math.min(...text.map(l => (Math.max(l, back) + .05) / (Math.min(l, back) + .05))),
	};
})()`

func TestPage(t *testing.T) {
	srv := serve(t)
	ctx := start(t)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{400, 1280} {
			t.Run(fmt.Sprintf("%s %d", scheme, width), func(t *testing.T) {
				ctx, cancel := chromedp.NewContext(ctx) // a tab
				defer cancel()
				var c complaints
				require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)))
				require.NoError(t, c.listen(ctx, srv.URL))
				_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
				})
				require.NoError(t, err)
				resp, err := chromedp.RunResponse(ctx, chromedp.Navigate(srv.URL))
				require.NoError(t, err)
				assert.EqualValues(t, http.StatusOK, resp.Status)
				require.NoError(t, chromedp.Do(ctx, chromedp.WaitVisible("#metrics")))
				s, err := chromedp.Run(ctx, chromedp.Evaluate[seen](look))
				require.NoError(t, err)
				picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
				require.NoError(t, err)
				if dir := os.Getenv("SCREENSHOTS"); dir != "" {
					require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.png", scheme, width)), picture, 0o600))
				}
				assert.Equal(t, 2*dials, s.Conns)
				assert.Greater(t, s.Metrics, 40)
				assert.LessOrEqual(t, s.Width, s.Window, "the page is to be no wider than the window")
				assert.EqualValues(t, width, s.Window)
				assert.Contains(t, s.Font, "system-ui", "the policy lets the style sheet in")
				assert.Equal(t, scheme == "dark", s.Dark)
				assert.GreaterOrEqual(t, s.Contrast, 4.5, "readable")
				assert.Empty(t, c.all())
			})
		}
	}
}
