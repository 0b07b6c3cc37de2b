# Everything a developer runs. Needs Debian or alike, root, Rust >= 1.95 and Go >= 1.26; `make setup`
# brings the rest and takes no time when it is there.

# The Kubernetes version of the test cluster, one of tests/kubernetes/.
KUBERNETES ?= 1.34.4

# What the cluster, the images and the linker need. openssl makes the service-account key.
PACKAGES = buildah ca-certificates conntrack containerd containernetworking-plugins etcd-server gcc haproxy iproute2 \
	iptables libc6-dev mount openssl procps python3-venv runc util-linux

TARGET = $(or $(CARGO_TARGET_DIR),target)
BIN = $(TARGET)/debug
KUBERNETES_BIN = target/kubernetes/v$(KUBERNETES)
CLUSTER = $(BIN)/cluster

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo lab cluster cluster-down images test lint bench packages kubernetes aws-python binaries archives tools

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: packages kubernetes ## install Debian packages and build the Kubernetes binaries, where missing

demo: setup images binaries ## show what the gate does: load, rollouts, and a table of failed requests
	$(CLUSTER) run --version $(KUBERNETES) -- $(BIN)/demo

# LAB="--quick", "--only nlb --seeds 3", "--resume"; $(BIN)/lab --help tells all. Rows are in target/lab after each batch.
lab: setup images binaries ## the whole traffic lab, about an hour: every load balancer and traffic; LAB= takes filters
	$(CLUSTER) run --version $(KUBERNETES) -- $(BIN)/lab $(LAB)

cluster: setup images binaries ## start a cluster, leave it running, and say how to use kubectl on it
	$(CLUSTER) up --version $(KUBERNETES)

cluster-down: binaries ## remove the cluster that `make cluster` started
	$(CLUSTER) down

# Cargo's own output, unchanged, for every crate; unit tests run in there as well as anywhere. Most tests wait more
# than they compute, hence more threads than cores.
test: setup aws-python images ## run every test, those on a real cluster included
	cargo test --workspace --locked --no-run
	RUST_TEST_THREADS=8 $(CLUSTER) run --version $(KUBERNETES) -- cargo test --workspace --locked --offline --no-fail-fast

lint: packages tools ## check format, lints, docs, each crate alone, dependencies and licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked
	for crate in app certs sidecar tests webhook; do cargo check --locked -p $$crate || exit; done
	! cargo tree --locked -p sidecar -e normal --prefix none | grep -E '^(axum|kube|kube-.*|clap) '
	! cargo tree --locked -p certs -e normal --prefix none | grep -E '^kube(-.*)? '
	target/tools/bin/cargo-deny check bans licenses sources

bench: setup images binaries ## measure the waiter's size and memory, and the time from release to SIGTERM
	$(CLUSTER) run --version $(KUBERNETES) -- $(BIN)/bench --waiter $(TARGET)/$(HOST)/image/waiter

# --- what the targets above need ---

packages:
	@installed=$$(dpkg-query --show --showformat '$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null | sed -n 's/ installed$$//p' | tr '\n' ' '); \
	missing=; for name in $(PACKAGES); do case " $$installed" in *" $$name "*) ;; *) missing="$$missing $$name" ;; esac; done; \
	if [ -n "$$missing" ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing; \
	fi

kubernetes: $(KUBERNETES_BIN)/kubelet

# Versions are stamped in, else the server says v0.0.0 and version checks go wrong. 1.34 is the
# basename of 1.34.4. The folder appears only when it is complete.
$(KUBERNETES_BIN)/kubelet: | packages
	cd tests/kubernetes/v$(basename $(KUBERNETES)) && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$(KUBERNETES_BIN).new/ \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$(KUBERNETES) -X k8s.io/component-base/version.gitMajor=1 \
			-X k8s.io/component-base/version.gitMinor=$(patsubst 1.%,%,$(basename $(KUBERNETES)))" \
		$(addprefix k8s.io/kubernetes/cmd/,kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)
	rm -rf $(KUBERNETES_BIN)
	mv $(KUBERNETES_BIN).new $(KUBERNETES_BIN)

AWS_PYTHON = moto==5.2.5 boto3==1.44.8 flask==3.1.3 flask-cors==6.0.5
AWS_VENV = target/tools/aws-venv
# Its name has the versions, so that others are installed when these change.
AWS_STAMP = $(AWS_VENV)/installed-$(subst $(space),-,$(subst ==,-,$(AWS_PYTHON)))
space = $(subst ,, )

aws-python: $(AWS_STAMP)

# Two strangers to our AWS calls: moto as another server, boto3 as another client. moto[server] would bring much more
# than these services need. The folder is made where it stays, since scripts in it carry its path.
$(AWS_STAMP): | packages
	rm -rf $(AWS_VENV)
	python3 -m venv $(AWS_VENV)
	$(AWS_VENV)/bin/pip install --quiet --disable-pip-version-check $(AWS_PYTHON)
	touch $@

binaries: packages
	cargo build --workspace --bins --locked

tools: target/tools/bin/cargo-deny

target/tools/bin/cargo-deny: | packages
	cargo install --locked --root target/tools cargo-deny

# --- images: FROM scratch, one static binary each, as OCI archives in target/images ---
# To push one: $(BUILDAH) pull oci-archive:target/images/waiter.tar, then
# $(BUILDAH) push prestop-gate.dev/waiter:VERSION docker://REGISTRY/waiter:VERSION.

VERSION := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
STATIC = RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' cargo build --locked --target $(HOST)
BUILDAH = buildah --storage-driver vfs --root $(CURDIR)/target/buildah/root --runroot $(CURDIR)/target/buildah/run

# The target is given explicitly, so that the flags don't reach build scripts. Each is built alone:
# built together, the waiter would get the features that others want of its crates.
images: packages ## build the container images as OCI archives in target/images
	$(STATIC) --profile image -p sidecar --bin waiter
	$(STATIC) --release -p webhook --bin prestop-gate
	$(STATIC) --release -p app
	@$(MAKE) --no-print-directory archives HOST=$(HOST)
	@cd target/images && du --apparent-size --block-size=1K *.tar | sed 's/\t/ kB\ttarget\/images\//'

RELEASE = $(TARGET)/$(HOST)/release
archives: target/images/waiter.tar target/images/prestop-gate.tar target/images/app.tar target/images/pause.tar

target/images/waiter.tar: $(TARGET)/$(HOST)/image/waiter
	$(call image,waiter,"/waiter",Holds a pod's SIGTERM back until its load balancers let go of it)
target/images/prestop-gate.tar: $(RELEASE)/prestop-gate
	$(call image,prestop-gate,"/prestop-gate",Admission webhook and confirmer of prestop-gate)
target/images/app.tar: $(RELEASE)/app
	$(call image,app,"/app",HTTP service for the tests of prestop-gate)
target/images/pause.tar: $(RELEASE)/app
	$(call image,pause,"/app"$(comma)"pause",Pod sandbox for the tests of prestop-gate)

comma = ,
# name, entrypoint as JSON words, description; the binary is the first prerequisite. The timestamp
# is fixed, so that the same binary gives the same digest.
define image
	@mkdir -p target/images target/buildah
	@set -e; container=$$($(BUILDAH) from scratch); \
	$(BUILDAH) copy --quiet --chmod 0755 $$container $< / >/dev/null; \
	$(BUILDAH) config --user 65532:65532 --entrypoint '[$(2)]' \
		--label org.opencontainers.image.title=$(1) --label "org.opencontainers.image.description=$(3)" \
		--label org.opencontainers.image.version=$(VERSION) --label org.opencontainers.image.licenses=Apache-2.0 $$container; \
	$(BUILDAH) commit --quiet --rm --timestamp 0 $$container oci-archive:$(CURDIR)/$@.$$$$:prestop-gate.dev/$(1):$(VERSION) >/dev/null; \
	mv $@.$$$$ $@
endef
