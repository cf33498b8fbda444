# Shortcuts around the CMake presets. Options in the environment reach CMake:
# `SEGUE_CUDA=OFF make test` configures again when that differs from last time.

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-all cuda asan tsan fuzz format check-format tidy clean

JOBS ?= $(shell nproc)
OPTIONS := SEGUE_CUDA SEGUE_ONEDNN SEGUE_ARROW SEGUE_SANITIZE SEGUE_CUDA_ARCHITECTURES SEGUE_MARCH \
           SEGUE_PCH SEGUE_UNITY SEGUE_WERROR
ARGS := $(foreach option,$(OPTIONS),$(if $($(option)),-D$(option)="$($(option))"))

# $(call build_preset,<preset>,<build folder>,<extra arguments>)
# Configures when the folder is new or the arguments (or the place of the checkout) changed, from
# scratch when a cache of unknown origin is in the way, then builds. Ninja shows its progress line on a
# terminal; in a log it speaks only when something fails.
define build_preset
	@mkdir -p $(2) && stamp='$(CURDIR) $(ARGS)' && \
	if [ ! -f $(2)/build.ninja ] || [ "$$(cat $(2)/.configured 2>/dev/null)" != "$$stamp" ]; then \
	  rm -f $(2)/.configured; \
	  cmake --preset $(1) $(ARGS) >$(2)/configure.log 2>&1 || \
	  cmake --fresh --preset $(1) $(ARGS) >$(2)/configure.log 2>&1 || { cat $(2)/configure.log; exit 1; }; \
	  sed -n 's/^-- segue /segue /p' $(2)/configure.log; \
	  echo "$$stamp" >$(2)/.configured; \
	fi
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; echo "building $(2)"; fi; \
	cmake --build $(2) -j $(JOBS) $(3) -- $$quiet
endef

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what the build needs (quiet when nothing is missing)
	@scripts/setup.sh

build: setup  ## build everything into build/
	$(call build_preset,release,build)

demo: setup  ## synth, prep, train, eval and report on a small log; results in build/demo
	$(call build_preset,release,build,--target segue)
	@scripts/demo.sh build/segue build/demo

test: build  ## all tests that are not slow
	@ctest --test-dir build --output-on-failure -LE slow -j $(JOBS)

test-all: build  ## all tests
	@ctest --test-dir build --output-on-failure -j $(JOBS)

cuda: setup  ## compile for all GPU architectures, into build/cuda
	$(call build_preset,cuda,build/cuda)

asan: setup  ## tests under the address and undefined-behaviour sanitizers
	$(call build_preset,asan,build/asan)
	@ctest --test-dir build/asan --output-on-failure -LE slow -j $(JOBS)

tsan: setup  ## tests under the thread sanitizer
	$(call build_preset,tsan,build/tsan)
	@ctest --test-dir build/tsan --output-on-failure -LE slow -j $(JOBS)

fuzz:  ## fuzz every format, 20 CPU minutes each; FUZZ="--minutes 1 npy csv" for less
	@scripts/fuzz.sh $(FUZZ)

format:  ## rewrite the sources in the house format
	@scripts/check_format.sh --fix

check-format:  ## fail when a source is not in the house format
	@scripts/check_format.sh

tidy: build  ## clang-tidy over all .cpp files; findings go to stdout
	@scripts/setup.sh --tidy
	@find src tests/golden/runner -name '*.cpp' -print0 | xargs -0 -r -n 1 -P $(JOBS) scripts/tidy/run.sh build 2>build/tidy.log

clean:  ## remove everything that was built
	rm -rf build
