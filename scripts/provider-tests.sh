#!/bin/bash
# Runs the tests that depend on libfabric, the kernel and the device, in parts. The
# programs come from bin/tests (make test-programs), since compiling takes too long on some
# machines. In the environment:
#
#   RDMANET_TEST_PROVIDERS  the providers, separated by commas; if empty, the software ones
#   RDMANET_TEST_HOST       the address of the device
#   LIMIT                   how long each program of a part may take (10m)
set -eu
cd "$(dirname "$0")/.."
. scripts/parts.sh

bin=$PWD/bin/tests
limit=${LIMIT:-10m}

# tests DIR PATTERN [ARGUMENT...] skips tests that need no provider, which make test runs, and the
# crowds, which are too large for an emulated machine.
tests() {
	local dir=$1 pattern=$2
	shift 2
	(cd "$dir" && "$bin/$(basename "$dir").test" -test.timeout "$limit" -test.run "$pattern" \
		-test.skip 'Crowd|TestManyConns|/(sim|simulated)|//(sim|simulated)' "$@")
}

# both is tests for rdmanet's own tests and those of whole processes.
both() {
	local verdict=0
	tests rdmanet "$@" || verdict=1
	tests internal/systemtest "$@" || verdict=1
	return $verdict
}

part binding tests cgo/ofi .
if [ -z "${RDMANET_TEST_PROVIDERS:-}" ]; then # over a device, the other parts cover what this one tests
	part fabric tests internal/fabric/ofifabric . -test.skip UnreachablePeer
	part exits tests internal/systemtest WriteExit
fi
part conn both Conn
part kills both 'Killed|Frozen'
part closing both 'BothWrite|WriteFirst|TakeTurns|CloseDuring|WriteCloseExit|ExitWithoutClose'
part web tests rdmanet 'HTTP|TLSAbove'
part http tests internal/systemtest 'HTTP|TLSAbove' -http.size 2097152
part grpc tests grpcdialer OverEachProvider
parts_passed
