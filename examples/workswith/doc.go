// Package workswith has a test for each library that docs/works-with.md names. It is a module of
// its own, so that the libraries stay out of the core.
//
// "make test-works" installs PostgreSQL and Redis and runs all of it. The tests of those two have
// the build tag works; the others need nothing but Go and libfabric.
package workswith
