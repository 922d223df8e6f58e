// Package browser tests the page of rdmadebug in a real browser: make test-browser. With
// SCREENSHOTS=dir in the environment it leaves pictures of the page there.
package browser
