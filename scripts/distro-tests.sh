#!/bin/bash
# Does what a new user does on a system that has only a C compiler, make and Go: make demo,
# shortened, then the tests of providers. For the roots of distro.sh.
set -eu
cd "$(dirname "$0")/.."
. scripts/parts.sh

part demo timeout 10m make demo DEMO="-rounds 1 -time 100ms"
part programs make test-programs
. /etc/os-release
echo "$PRETTY_NAME, $(bin/tests/fabricnet info --local 127.0.0.1 | sed -n 1p)"
./scripts/provider-tests.sh || failed="$failed providers"
parts_passed
