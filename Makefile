# `make help` lists the targets.

GO       ?= go
FUZZTIME ?= 10s
COUNT    ?= 20
SAMPLES  ?= 6
DEMO     ?=
BENCH    ?= -targets -json bench/results/latest.json -text bench/results/latest.txt
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Modules of their own keep what they depend on out of the core's go.mod. go.work
# has them use the core that lies beside them.
NESTED   := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod))

# LIBFABRIC is the prefix of another libfabric than the system's, for every target:
# make test LIBFABRIC=/opt/libfabric. Its headers are compiled with, and it is loaded. Go
# does not notice when the headers under a prefix change: give each version a prefix of
# its own, or go clean -cache.
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
build: deps ## compile everything; the benchmark goes to bin/bench, the proxy to bin/fabricnet
	$(GO) build ./...
	$(GO) build -o bin/ ./bench ./cmd/fabricnet

.PHONY: demo
demo: deps ## TCP and fabric side by side, then a file over HTTP over the fabric: under two minutes
	$(GO) build -o bin/bench ./bench
	$(GO) build -o bin/http ./examples/http
	./bin/bench -demo $(DEMO)
	./bin/http

# The package must compile where there is no libfabric: without cgo, off Linux, and
# where its headers are missing. The race detector allocates, as AddressSanitizer does, so the tests of
# allocations and of what is resident run without, and that of a thousand peers, which would take ten minutes.
# Where two processes do not map each other's rings, shm copies from process to process
# if the kernel lets it (CMA), and through shared memory, piece by piece, where it does not,
# as in most containers and with Ubuntu's ptrace_scope: that is other code of libfabric's,
# with other times.
UNMAPPED := RDMANET_MAPPED_RINGS=off RDMANET_TEST_PROVIDERS=shm
LARGE := Kill|Hostile|Frozen|Exit|Conn|CloseAt|CloseDuring|Flat|BothWrite|Stuck|Alloc

.PHONY: test
test: deps ## vet, compile without cgo and for darwin, then all tests with -race, a gibibyte over HTTP, and shm without mapped rings, with CMA and without
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) build ./...
	GOOS=darwin CGO_ENABLED=0 $(GO) vet ./...
	$(GO) test -race -shuffle=on -timeout=20m ./rdmanet ./internal/engine ./... # those that take longest first
	@for m in $(NESTED); do (set -x; cd $$m && $(GO) vet ./... && CGO_ENABLED=0 $(GO) build -o /dev/null ./... && \
		GOOS=darwin CGO_ENABLED=0 $(GO) vet ./... && $(GO) test -race -shuffle=on -timeout=20m ./...) || exit; done
	CGO_CFLAGS="$(or $(CGO_CFLAGS),-g -O2) -DOFI_NO_HEADERS" $(GO) test -run 'TestWithoutLibfabric|TestNotLinked' ./rdmanet ./cgo/ofi
	$(GO) test -run 'Alloc|Resident|Thousand' ./internal/engine ./rdmanet
	$(GO) test -run TestHTTPFile -timeout=15m ./rdmanet -http.size=1073741824
	$(UNMAPPED) $(GO) test -timeout=20m -run '$(LARGE)' ./rdmanet
	$(UNMAPPED) FI_SHM_DISABLE_CMA=1 $(GO) test -count=1 -timeout=20m ./rdmanet ./grpcdialer # Go's cache of results does not know libfabric's variables

# For machines where compiling takes too long, or without Go.
.PHONY: test-programs
test-programs: deps ## the programs of test-providers and test-device, in bin/tests
	@mkdir -p bin/tests
	$(GO) test -c -o bin/tests/ ./cgo/ofi ./rdmanet ./grpcdialer
	$(GO) test -c -tags softroce -o bin/tests/ ./internal/fabric/ofifabric
	$(GO) build -buildvcs=auto -o bin/tests/bench ./bench
	@{ git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown; } >bin/tests/commit

.PHONY: test-providers
test-providers: test-programs ## the tests of what depends on libfabric, over RDMANET_TEST_PROVIDERS or the software ones, in five minutes
	./scripts/provider-tests.sh

SOFTROCE_LIMIT ?= 3600
.PHONY: test-softroce
test-softroce: test-programs ## the tests over a real RDMA stack, and a comparison with rsockets, in a virtual machine with Soft-RoCE
	./scripts/softroce.sh -t $(SOFTROCE_LIMIT) ./scripts/softroce-tests.sh

.PHONY: test-device
test-device: test-programs ## the same over this machine's RDMA device, or PROVIDER=, DEVICE= and HOST=, with a report to send in, in ten minutes
	PROVIDER='$(PROVIDER)' DEVICE='$(DEVICE)' HOST='$(HOST)' ./scripts/device-tests.sh

SUITE ?= trixie
.PHONY: test-distros
test-distros: ## the demo and test-providers in a root of Debian 13, or of SUITE, as a new user would run them: as root
	./scripts/distro.sh $(SUITE) ./scripts/distro-tests.sh

.PHONY: test-unstable
test-unstable: ## the same in a root of Debian unstable
	$(MAKE) test-distros SUITE=sid

# Each version has a prefix of its own, of which Go's build cache takes note. Programs that
# are run by themselves have no results in the cache of go test, which does not know libraries.
.PHONY: test-libfabrics
test-libfabrics: ## test-providers with each of VERSIONS="2.1.0 2.6.0" of libfabric, built from SOURCE=a git directory
	@./scripts/deps.sh libfabrics
	./scripts/libfabrics.sh '$(SOURCE)' $(VERSIONS)

# In network namespaces that they make: as root. The tests say so if they are not.
.PHONY: test-hosts
test-hosts: ## the tests of two hosts and of containers on one, as root, in three minutes
	@./scripts/deps.sh hosts
	$(GO) vet -tags hosts ./rdmanet
	$(GO) test -count=1 -timeout=15m -tags hosts -run 'TestHosts|TestContainers' ./rdmanet

.PHONY: test-containers
test-containers: ## the Containerfile, run by buildah, the manifest and the alerts, as root, in three minutes
	./scripts/containers.sh

.PHONY: test-browser
test-browser: ## the debug page in headless Chromium
	@./scripts/deps.sh browser
	cd rdmadebug/browser && $(GO) vet -tags browser ./... && $(GO) test -count=1 -tags browser -timeout=5m ./...

.PHONY: race
race: deps ## the conn's tests COUNT times over with -race
	$(GO) test -race -shuffle=on -timeout=30m -count=$(COUNT) -run Conn ./rdmanet

# The pool says which of its memory is free, so that a transfer to or from
# that is noticed, libfabric's own included. Its own leaks are listed in the
# file; they can be told from ours only by whole stacks, which need symbols (-o).
# Left out: hostile peers that write to their own landing memory where no ring is
# granted, which harms only them but is reported, fabrics that lie about what has
# landed (TestRules, two lies of the path check's), bounds on the process's memory, and a
# crash of libfabric's that is expected, and reported in other words.
NOT_ASAN := TestHostileScripts|FuzzFrames|TestRules|TestCrowd|TestPathCheckOfLies/.*/a_(send_comes|completion_means)|TestAttacksOnProvidersPort/.*/^a_request
ASAN := ASAN_OPTIONS=fast_unwind_on_malloc=0 LSAN_OPTIONS=suppressions=$(CURDIR)/scripts/lsan.supp:print_suppressions=0

.PHONY: asan
asan: deps ## the tests of everything that touches registered memory, under AddressSanitizer, in seven minutes
	@mkdir -p bin/asan
	$(ASAN) $(GO) test -asan -timeout=20m -skip "$(NOT_ASAN)" -o bin/asan/ ./cgo/... ./pool ./internal/fabric/... ./internal/engine ./rdmanet

.PHONY: lint
lint: deps ## golangci-lint, built from source once and then cached
	@for m in . $(NESTED); do (set -x; cd $$m && $(GO) run $(LINT) run --config $(CURDIR)/.golangci.yml ./...) || exit; done

.PHONY: fuzz
fuzz: deps ## every fuzz target for FUZZTIME each
	@./scripts/fuzztargets.sh | while read -r dir target; do ./scripts/fuzz.sh $$dir $$target -fuzztime $(FUZZTIME) || exit; done

.PHONY: soak
soak: deps ## the long form of what depends on timing or chance, in two hours; the summary goes to docs/soak.txt
	./scripts/soak.sh

.PHONY: bench
bench: deps ## what the targets need, and the verdict, in a quarter of an hour, kept in bench/results; BENCH has the flags
	$(GO) build -buildvcs=auto -o bin/bench ./bench
	mkdir -p bench/results
	./bin/bench $(BENCH)

.PHONY: microbench
microbench: deps ## the Go benchmarks below the public package, SAMPLES times each, for benchstat
	@$(GO) test -run '^$$' -bench . -benchmem -count $(SAMPLES) ./framing ./pool ./internal/...
