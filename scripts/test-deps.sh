#!/usr/bin/env bash
# Builds and vets the core, and runs quick tests, with the oldest Go and the oldest
# dependencies that go.mod allows, and with the Go of the argument and the newest gRPC-Go
# and golang.org/x. The workspace would mix in what the nested modules require.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
newest=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export GOWORK=off RDMANET_TEST_PROVIDERS=shm

# moving prints the modules whose newest versions are tested.
moving() { sed -nE 's#^\t(golang.org/x/[a-z]+|google.golang.org/grpc) .*#\1#p' go.mod; }

check() {
	go version
	go list -m $(moving)
	go build ./...
	go vet ./...
	go test -count=1 -timeout=10m -run 'TestConn|TestGRPC|TestHTTP|TestWeb|Dial|Listen' ./rdmanet
	go test -count=1 -timeout=10m -run 'TLSAbove|WriteCloseExit' ./internal/systemtest
	go test -count=1 -timeout=10m -skip TestManyCallsInFlight ./grpcdialer ./httpdialer
}

GOTOOLCHAIN=go$(sed -n 's/^go //p' go.mod)
export GOTOOLCHAIN
check

cp go.mod go.sum "$tmp"
export GOTOOLCHAIN="$newest+auto" GOFLAGS="${GOFLAGS:-} -modfile=$tmp/go.mod"
go get $(moving | sed 's/$/@latest/')
go mod tidy
check
