# Phoebus. Each target does the set-up it needs: `make demo` and `make test` work on a fresh Debian machine.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
PHOEBUS = $(TARGET)/release/phoebus

.PHONY: all build demo test bench check fuzz clean

all: build

# The binary and the preload library, side by side in target/release.
build:
	$(CARGO) build --release --workspace

# Moves real data over an emulated WAN, directly and through two gateways, and compares.
demo:
	scripts/setup demo
	$(MAKE) build
	$(PHOEBUS) demo

# Unit, property, simulation, real-network and real-peer tests.
test:
	scripts/setup test
	$(MAKE) build
	$(CARGO) test --release --workspace --all-features

# The experiments; tables go to docs/benchmarks.md by hand, after a look at them.
bench:
	scripts/setup test
	$(MAKE) build
	for name in emulator relay latency short throughput; do $(PHOEBUS) bench $$name || exit 1; done

# What a reviewer should never have to say.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --all-features
	$(CARGO) deny --all-features check bans licenses sources

# A minute for each fuzz target; needs a nightly toolchain and cargo-fuzz.
FUZZ_SECONDS ?= 60
fuzz:
	cd fuzz && for target in $$($(CARGO) +nightly fuzz list); do \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done

clean:
	$(CARGO) clean
