#!/usr/bin/env bash
# Installs the published peers, each in a venv of its own (two of them share a script name), and the
# encoding that sglang-router needs offline. Usage: install.sh UV FOLDER
set -euo pipefail
uv=$(realpath "$1")
mkdir -p "$2"
here=$(realpath "$2")

peer() { # name package…
  local name=$1
  shift
  echo "==> peer $name"
  test -x "$here/$name/bin/python" || "$uv" venv --quiet "$here/$name"
  "$uv" pip install --quiet -p "$here/$name/bin/python" "$@"
}
peer smg 'smg==1.13.0'
peer sglang-router 'sglang-router==0.3.2'
peer stubs 'smg-grpc-proto==0.4.28' 'grpcio>=1.81.1'

# The crate tiktoken-rs carries the file that sglang-router otherwise downloads at start.
want=446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d
target=$here/tiktoken/o200k_base.tiktoken
if ! test -f "$target"; then
  echo "==> encoding o200k_base"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/src" "$here/tiktoken"
  : >"$work/src/lib.rs"
  cat >"$work/Cargo.toml" <<'T'
[package]
name = "carrier"
version = "0.0.0"
edition = "2021"
[dependencies]
tiktoken-rs = "=0.7.0"
[workspace]
T
  (cd "$work" && cargo vendor --quiet vendor >/dev/null)
  cp "$(find "$work/vendor/tiktoken-rs" -name 'o200k_base.tiktoken')" "$target.part"
  got=$(sha256sum "$target.part" | cut -d' ' -f1)
  test "$got" = "$want" || { echo "o200k_base.tiktoken has sha256 $got, expected $want"; exit 1; }
  mv "$target.part" "$target"
fi
