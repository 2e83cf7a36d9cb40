# Phoebus. Each target does the set-up it needs: `make demo` and `make test` work on a fresh Debian machine.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
# One of cargo's profiles: the tests have one of their own that builds quickly (`make test PROFILE=release` before a release).
PROFILE =
profile_of = $(or $(PROFILE),$1)
BUILT = $(TARGET)/$(patsubst dev,debug,$(call profile_of,release))
PHOEBUS = $(BUILT)/phoebus

.PHONY: all build xio demo test soak bench check fuzz clean install install-xio

all: build

# The binary and the libraries, side by side in target/release.
build:
	$(CARGO) build --profile $(call profile_of,release)

# The Globus XIO driver, in target/xio; needs libglobus-xio-dev.
xio: build
	$(MAKE) -C xio

# Moves real data over an emulated WAN, directly and through two gateways, and compares.
demo:
	scripts/setup demo
	$(MAKE) build
	$(PHOEBUS) demo

# Unit, property, simulation, real-network and real-peer tests.
test:
	scripts/setup test
	$(MAKE) -C xio test
	CARGO="$(CARGO)" scripts/test --profile $(call profile_of,dev)

# The tests that have a short form in `make test`, at their full length.
soak:
	scripts/setup test
	CARGO="$(CARGO)" PHOEBUS_SOAK=1 scripts/test --profile $(call profile_of,dev) driver_leaks cp_objects_killed many_transfers_share udtcat::testbed udtcat::libudt

# The experiments; tables go to docs/benchmarks.md by hand, after a look at them, which also says how long each takes. Those
# behind the names are done once more with what carries the hops compared. Some: make bench EXPERIMENTS="udt cpu" COMPARED=
EXPERIMENTS ?= emulator udt relay latency short cpu rate bottleneck fairness throughput gridftp sc09
COMPARED ?= latency short throughput
TRANSPORTS ?= bbr,cubic,quic,udt,auto
bench:
	scripts/setup test
	$(MAKE) build
	$(MAKE) -C xio
	for name in $(EXPERIMENTS); do $(PHOEBUS) bench $$name || exit 1; done
	for name in $(COMPARED); do \
		$(PHOEBUS) bench $$name --transport $(TRANSPORTS) --out bench-results/transports || exit 1; done

# A library of libFuzzer for checks, which link nothing: without one it would be compiled.
NO_LIBFUZZER = /nonexistent/libfuzzer.a

# What a reviewer should never have to say.
check:
	$(CARGO) fmt --all --check
	scripts/layers
	scripts/references
	CUSTOM_LIBFUZZER_PATH=$(NO_LIBFUZZER) $(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features
	$(CARGO) deny --all-features check bans licenses sources

# A minute for each fuzz target; needs a nightly toolchain and cargo-fuzz.
FUZZ_SECONDS ?= 60
fuzz:
	cd fuzz && for target in $$($(CARGO) +nightly fuzz list); do \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done

clean:
	$(CARGO) clean

# `make && sudo make install PREFIX=/usr`. DESTDIR is for packages.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Of the workspace, and of libphoebus's interface: what a change of that changes (before 1.0 the second number too).
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -1)
INTERFACE := $(shell echo $(VERSION) | sed -E 's/^(0\.[0-9]+|[1-9][0-9]*)\..*/\1/')
FILL = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@BINDIR@|$(BINDIR)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
	-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|'

# $(call stripped,FILE,MODE,PLACE): installs FILE as PLACE, and what debuggers and backtraces need of it in .debug beside it.
define stripped
	install -D -m $(2) $(1) $(DESTDIR)$(3)
	install -d $(DESTDIR)$(dir $(3)).debug
	objcopy --only-keep-debug $(1) $(DESTDIR)$(dir $(3)).debug/$(notdir $(3)).debug
	chmod 644 $(DESTDIR)$(dir $(3)).debug/$(notdir $(3)).debug
	objcopy --strip-unneeded --add-gnu-debuglink=$(DESTDIR)$(dir $(3)).debug/$(notdir $(3)).debug $(DESTDIR)$(3)
endef

install:
	$(call stripped,$(PHOEBUS),755,$(BINDIR)/phoebus)
	$(call stripped,$(BUILT)/libphoebus.so,644,$(LIBDIR)/libphoebus.so.$(VERSION))
	ln -sf libphoebus.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libphoebus.so.$(INTERFACE)
	ln -sf libphoebus.so.$(INTERFACE) $(DESTDIR)$(LIBDIR)/libphoebus.so
	$(call stripped,$(BUILT)/libphoebus_preload.so,644,$(LIBDIR)/phoebus/libphoebus_preload.so)
	install -d $(DESTDIR)$(INCLUDEDIR)
	install -m 644 crates/capi/include/*.h $(DESTDIR)$(INCLUDEDIR)
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(UNITDIR) $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man3
	$(FILL) crates/capi/phoebus.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/phoebus.pc
	$(FILL) packaging/phoebus-gateway.service.in > $(DESTDIR)$(UNITDIR)/phoebus-gateway.service
	install -m 644 crates/capi/man/*.3 $(DESTDIR)$(MANDIR)/man3
	# A page is found by each of its names.
	for page in crates/capi/man/*.3; do for name in $$(sed -n '/^\.SH NAME/{n;s/ \\-.*//;s/,//g;p;}' $$page); do \
		[ $$name.3 = $${page##*/} ] || ln -sf $${page##*/} $(DESTDIR)$(MANDIR)/man3/$$name.3; done; done
	$(PHOEBUS) manual $(DESTDIR)$(MANDIR)/man1
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(PHOEBUS) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/phoebus
	$(PHOEBUS) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_phoebus
	$(PHOEBUS) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/phoebus.fish

# Builds the Globus XIO driver, and installs it with what it needs: `make install-xio PREFIX=/usr`; needs libglobus-xio-dev (S10).
install-xio: xio
	$(MAKE) install
	$(MAKE) -C xio install
