# `make help` lists the targets.

GO       ?= go
FUZZTIME ?= 10s
COUNT    ?= 20
SAMPLES  ?= 6
DEMO     ?=
BENCH    ?= -targets -json bench/results/latest.json -text bench/results/latest.txt
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# These modules keep their dependencies out of the core's go.mod. go.work makes them use
# the core in this repository.
NESTED   := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod))
ALL      := ./... $(NESTED:%=./%/...)

# LIBFABRIC is the prefix of a libfabric to use instead of the system's, for every target:
# make test LIBFABRIC=/opt/libfabric. Its headers are used to compile, and its library is
# loaded. Go does not notice when the headers under a prefix change: give each version a
# prefix of its own, or run go clean -cache.
ifdef LIBFABRIC
override LIBFABRIC := $(abspath $(LIBFABRIC))
export LIBFABRIC
export CGO_CFLAGS := $(or $(CGO_CFLAGS),-g -O2) -I$(LIBFABRIC)/include
export RDMANET_LIBFABRIC := $(firstword $(wildcard $(LIBFABRIC)/lib*/libfabric.so.1 $(LIBFABRIC)/lib/*/libfabric.so.1) $(LIBFABRIC)/lib/libfabric.so.1)
endif

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install libfabric, its headers and a C compiler if they are missing
	@./scripts/deps.sh

.PHONY: build
build: deps ## compile everything; the benchmark goes to bin/bench, the commands to bin/fabricnet
	$(GO) build ./...
	$(GO) build -o bin/ ./bench ./cmd/fabricnet

.PHONY: demo
demo: deps ## compare TCP and fabric side by side, then send a file by HTTP over the fabric; under two minutes
	$(GO) build -o bin/bench ./bench
	$(GO) build -o bin/http ./examples/http
	./bin/bench -demo $(DEMO)
	./bin/http

# Everything must compile where there is no libfabric: without cgo and off Linux, and the core
# without its headers. The race detector makes tests take up to ten times as long. Those that repeat
# one thing very often do so a tenth as often with it (race.Fewer), and as often as they should
# without. It also allocates memory, like AddressSanitizer, so the tests of allocations and of
# resident memory run only without it, and so do those of a thousand peers, which would take ten
# minutes, and of two learners, which has one goroutine. No more packages than there are processors
# are tested at a time: many tests bound how long something takes.
UNRACED := Alloc|Resident|Thousand|Model|TwoLearners|HostileScripts|Steps|Heartbeats|PathCheck|Rules|ClosingWalk|NotStarved|Losses|WriteExit|WriteCloseExit|FlatMemory

# ALONE are tests over the simulated fabric that bound how long dials take: beside another
# package they would measure that one, too.
ALONE := ^TestStrangers$$

.PHONY: test
test: deps ## vet, compile without cgo and for darwin, run all tests with -race, and those that it disturbs without
	$(GO) vet $(ALL)
	CGO_ENABLED=0 $(GO) build -o /dev/null $(ALL)
	GOOS=darwin CGO_ENABLED=0 $(GO) vet $(ALL)
	$(GO) test -race -p $$(nproc) -shuffle=on -timeout=40m ./internal/engine ./rdmanet ./internal/systemtest ./bench/internal/load $(ALL) # what takes longest first
	CGO_CFLAGS="$(or $(CGO_CFLAGS),-g -O2) -DOFI_NO_HEADERS" $(GO) test -run 'TestWithoutLibfabric|TestNotLinked' ./internal/systemtest ./cgo/ofi
	$(GO) test -timeout=20m -run '$(UNRACED)' ./internal/systemtest ./internal/engine/... ./rdmanet
	$(GO) test -run '$(ALONE)' ./rdmanet
	$(GO) test -run TestHTTPFile -timeout=15m ./internal/systemtest -http.size=1073741824

NEWEST_GO := go1.27.4
.PHONY: test-deps
test-deps: deps ## quick tests of the core with the oldest Go and dependencies that go.mod allows, and with the newest Go, gRPC-Go and golang.org/x
	./scripts/test-deps.sh $(NEWEST_GO)

VERSION ?= v0.0.0-check
.PHONY: release-check
release-check: deps ## as root: check that what is committed can be released as VERSION=v0.1.0, and used as a program would use it
	./scripts/release-check.sh $(VERSION)

# For machines on which compiling takes too long, or which have no Go.
.PHONY: test-programs
test-programs: deps ## compile the programs of test-providers and test-device into bin/tests
	@mkdir -p bin/tests
	$(GO) test -c -o bin/tests/ ./cgo/ofi ./rdmanet ./internal/systemtest ./grpcdialer
	$(GO) test -c -tags softroce -o bin/tests/ ./internal/fabric/ofifabric
	$(GO) build -buildvcs=auto -o bin/tests/ ./bench ./cmd/fabricnet
	@{ git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown; } >bin/tests/commit

.PHONY: test-providers
test-providers: test-programs ## run the tests that depend on libfabric, over RDMANET_TEST_PROVIDERS or the software providers, in five minutes
	./scripts/provider-tests.sh

SOFTROCE_LIMIT ?= 3600
.PHONY: test-softroce
test-softroce: test-programs ## run the same tests over a real RDMA stack, and a comparison with rsockets, in a virtual machine with Soft-RoCE
	./scripts/softroce.sh -t $(SOFTROCE_LIMIT) ./scripts/softroce-tests.sh

.PHONY: test-device
test-device: test-programs ## run the same tests over this machine's RDMA device (or PROVIDER=, DEVICE=, HOST=), with a report to send in, in ten minutes
	PROVIDER='$(PROVIDER)' DEVICE='$(DEVICE)' HOST='$(HOST)' ./scripts/device-tests.sh

SUITE ?= trixie
.PHONY: test-distros
test-distros: ## as root: run the demo and test-providers in a root of Debian 13, or of SUITE, as a new user would run them
	./scripts/distro.sh $(SUITE) ./scripts/distro-tests.sh

.PHONY: test-unstable
test-unstable: ## as root: run test-distros in a root of Debian unstable
	$(MAKE) test-distros SUITE=sid

# Each version has a prefix of its own, which Go's build cache notices. The programs are run
# directly: go test would cache their results, since it does not notice another library.
.PHONY: test-libfabrics
test-libfabrics: ## run test-providers with each of VERSIONS="2.1.0 2.6.0" of libfabric, built from SOURCE=a git directory
	@./scripts/deps.sh libfabrics
	./scripts/libfabrics.sh '$(SOURCE)' $(VERSIONS)

# The tests make network namespaces. They say so if they are not run as root.
.PHONY: test-hosts
test-hosts: ## as root: run the tests of two hosts, and of containers on one, in three minutes
	@./scripts/deps.sh hosts
	$(GO) vet -tags hosts ./internal/systemtest
	$(GO) test -count=1 -timeout=15m -tags hosts -run 'TestHosts|TestContainers' ./internal/systemtest

.PHONY: test-containers
test-containers: ## as root: build and run the Containerfile with buildah, check the manifest and the alerts, in three minutes
	./scripts/containers.sh

.PHONY: test-browser
test-browser: ## test the debug page in headless Chromium
	@./scripts/deps.sh browser
	cd rdmadebug/browser && $(GO) vet -tags browser ./... && $(GO) test -count=1 -tags browser -timeout=5m ./...

# The servers of the tests are processes that the tests start; Debian's services are not used.
.PHONY: test-works
test-works: ## test with the libraries and servers of docs/works-with.md, in a minute
	@./scripts/deps.sh workswith
	cd examples/workswith && $(GO) vet -tags works ./... && $(GO) test -count=1 -tags works -timeout=5m ./...

.PHONY: race
race: deps ## run the tests of conns COUNT times with -race
	$(GO) test -race -shuffle=on -timeout=30m -count=$(COUNT) -run Conn ./rdmanet ./internal/systemtest

# The pool marks its free memory as poisoned, so that transfers to or from it are noticed,
# even libfabric's. libfabric's own leaks are listed in lsan.supp; they can be told from
# ours only by complete stacks, which need symbols (-o).
# Left out: hostile peers that write to their own landing memory where no ring is granted,
# which harms only them but is reported; fabrics that lie about what has landed (TestRules,
# and two lies in the test of the path check); bounds on the process's memory; and a
# crash in libfabric that is expected, but reported in other words.
NOT_ASAN := TestHostileScripts|FuzzFrames|TestRules|TestCrowd|TestPathCheckOfLies/.*/a_(send_comes|completion_means)|TestAttacksOnProvidersPort/.*/^a_request
ASAN := ASAN_OPTIONS=fast_unwind_on_malloc=0 LSAN_OPTIONS=suppressions=$(CURDIR)/scripts/lsan.supp:print_suppressions=0

.PHONY: asan
asan: deps ## run the tests of everything that touches registered memory under AddressSanitizer, in seven minutes
	@mkdir -p bin/asan
	$(ASAN) $(GO) test -asan -timeout=20m -skip "$(NOT_ASAN)" -o bin/asan/ ./cgo/... ./pool ./internal/fabric/... ./internal/engine ./rdmanet ./internal/systemtest

.PHONY: lint
lint: deps ## run golangci-lint, which is built from source once and then cached
	@for m in . $(NESTED); do (set -x; cd $$m && $(GO) run $(LINT) run --config $(CURDIR)/.golangci.yml ./...) || exit; done

.PHONY: fuzz
fuzz: deps ## run every fuzz target for FUZZTIME
	@./scripts/fuzztargets.sh | while read -r dir target; do ./scripts/fuzz.sh $$dir $$target -fuzztime $(FUZZTIME) || exit; done

.PHONY: soak
soak: deps ## run the long form of tests that depend on timing or chance, in two hours; the summary goes to docs/soak.txt
	./scripts/soak.sh

.PHONY: bench
bench: deps ## measure the project's targets and judge them, in a quarter of an hour, into bench/results; BENCH has the flags
	$(GO) build -buildvcs=auto -o bin/bench ./bench
	mkdir -p bench/results
	./bin/bench $(BENCH)

.PHONY: microbench
microbench: deps ## run the Go benchmarks below the public package, SAMPLES times each, for benchstat
	@$(GO) test -run '^$$' -bench . -benchmem -count $(SAMPLES) ./framing ./pool ./internal/...
