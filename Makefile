# Carillon's tasks. `make` prints this help from the comments behind the targets.

GO      ?= go
TOOL     = $(GO) tool -modfile=tools.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -X github.com/carillon-scheduler/carillon/node.Version=$(VERSION)
# Packages whose goroutines the race detector watches in CI.
RACE     = ./fsm ./wheel ./cron ./schedule ./store ./node/... ./rpc ./client ./command ./relay

.DEFAULT_GOAL := help
.PHONY: help setup build demo cluster test test-race integration sim drills fuzz bench lint fmt gen check-gen clean

help: ## print this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## fetch modules and build the pinned tools
	$(GO) mod download
	$(TOOL) buf --version

build: ## build ./carillon
	$(GO) build -ldflags '$(LDFLAGS)' -o carillon .

demo: build ## run the main job: a real server, jobs, a worker, a retry, a dead letter; ends by itself
	./carillon demo

cluster: build ## run three nodes on this machine, from port 7171 on, until Ctrl-C
	./carillon cluster local --port 7171

test: ## run all tests (short drills included), none skipped
	$(GO) test -timeout 10m ./...

test-race: ## run the unit tests under the race detector
	$(GO) test -race -timeout 20m $(RACE)

integration: ## run only the tests with real processes
	$(GO) test -count=1 -timeout 10m ./integration/...

SIM_FOR ?= 60s
sim: ## play a whole cluster in one goroutine under trouble, over fresh seeds for SIM_FOR
	SIM_FOR=$(SIM_FOR) $(GO) test -count=1 -timeout 24h -v -run 'TestSim$$' ./integration/sim $(SIM_ARGS)

drills: ## run the crash drills in their long form
	CARILLON_DRILL=10m $(GO) test -count=1 -timeout 60m -v -run 'Crash|Drill' ./integration/...

FUZZTIME ?= 30s
fuzz: ## fuzz every decoder for FUZZTIME each
	@for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
	  done; \
	done

bench: build ## measure the budgets on one node (median of 3) and print the table
	./carillon bench all

lint: ## vet, staticcheck, buf lint, formatting
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'gofmt needed:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) buf lint

fmt: ## format Go and proto files
	gofmt -w $$(git ls-files '*.go')
	$(TOOL) buf format -w proto/carillon

gen: ## generate the Go beside the .proto files
	$(TOOL) buf generate --template buf.gen.yaml --path proto/carillon/v1 --path proto/carillon/cluster
	$(TOOL) buf generate --template buf.gen.storage.yaml --path proto/carillon/storage

check-gen: gen ## fail if the generated code is not what the .proto files say
	@git diff --exit-code -- proto || { echo 'generated code is out of date: run make gen and commit'; exit 1; }

clean: ## remove what was built
	rm -rf carillon bin
