#!/bin/sh
# Fuzzes what reads hostile bytes, guided by coverage, with no more than cargo and a C++ compiler.
#
#   run.sh TARGET|all [SECONDS]     default: 60; without a target: their names
#
# The corpus (corpus/TARGET) begins with seeds/TARGET and is kept; a finding is left in
# artifacts/TARGET and the exit status is not 0. `cargo fuzz run TARGET` does the same.
set -eu
cd "$(dirname "$0")"
names=$(cd fuzz_targets && ls | sed 's/\.rs$//')
seconds=${2:-60}
case ${1:-} in
all)
	for name in $names; do "./$(basename "$0")" "$name" "$seconds"; done
	exit ;;
*[!a-z_]* | "")
	echo "usage: run.sh TARGET|all [SECONDS]; targets:" $names >&2
	exit 2 ;;
esac
name=$1
host=x86_64-unknown-linux-gnu
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks \
-Ccodegen-units=1 --cfg fuzzing"
cargo build --quiet --release --target "$host" --bin "$name"
seeds=seeds/$name
if [ "$name" = image ]; then seeds=../objtool/tests/fixtures; fi
mkdir -p "corpus/$name" "artifacts/$name" "$seeds"
exec "target/$host/release/$name" "corpus/$name" "$seeds" -artifact_prefix="artifacts/$name/" \
	-max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
