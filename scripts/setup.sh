#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that the build needs, and fetches the libraries that Debian does
# not have (scripts/fetch_wheels.sh). Silent when nothing is missing.
# With --tidy also clang-tidy, which only `make tidy` needs; with --fuzz clang, which only `make fuzz` needs.
set -euo pipefail
cd "$(dirname "$0")/.."

required=(make cmake ninja-build g++ libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libboost-dev libsodium-dev zlib1g-dev libzstd-dev libgtest-dev)
# The build does without these: slower CPU matrix products, no mpirun (ranks then talk over TCP), slower
# rebuilds, no format check, and (pip, which fetches Arrow) no Parquet files.
optional=(libdnnl-dev libopenmpi-dev openmpi-bin ccache clang-format-14)
case ${1:-} in
  --tidy) required+=(clang-tidy-14) ;;
  --fuzz) required+=(clang-14 libclang-rt-14-dev) ;;
esac
if [[ ! -e .deps/arrow ]] && ! python3 -m pip --version >/dev/null 2>&1; then optional+=(python3-pip); fi

# Optional packages that could not be installed before; delete the file to try again.
skipped=.deps/unavailable-packages

# Prints those of its arguments that are not installed.
missing() {
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  printf '%s\n' "$@" | grep -vxF -f <(awk '$2 == "installed" { print $1 }' <<<"$installed") || true
}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

install_packages() {
  local need want package
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; the build needs the equivalents of: ${required[*]}" >&2
    return
  fi

  mapfile -t need < <(missing "${required[@]}")
  mapfile -t want < <(missing "${optional[@]}" | grep -vxsF -f <(cat "$skipped" 2>/dev/null) || true)
  (( ${#need[@]} + ${#want[@]} > 0 )) || return 0

  if (( EUID == 0 )); then
    as_root=()
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif (( ${#need[@]} > 0 )); then
    echo "sudo apt-get update && sudo apt-get install -y --no-install-recommends ${need[*]} ${want[*]}" >&2
    exit 1
  else
    echo "setup: going on without ${want[*]} (not installed, and no root rights)" >&2
    return
  fi

  echo "setup: installing ${need[*]} ${want[*]}" >&2
  apt update || echo "setup: apt-get update failed, using the package lists as they are" >&2
  if (( ${#need[@]} > 0 )); then
    apt install -y --no-install-recommends "${need[@]}"
  fi
  for package in "${want[@]}"; do
    if ! apt install -y --no-install-recommends "$package" 2>/dev/null; then
      echo "setup: going on without $package (could not be installed)" >&2
      mkdir -p .deps
      echo "$package" >>"$skipped"
    fi
  done
}

install_packages
scripts/fetch_wheels.sh --once
