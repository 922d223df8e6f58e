// Package browser tests the page of rdmadebug in a real browser; "make test-browser" runs
// it. With SCREENSHOTS=dir in the environment it leaves screenshots of the page in dir.
package browser
