// Package browser tests the page of rdmadebug in a real browser: make test-browser.
package browser
