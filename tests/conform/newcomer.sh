#!/bin/bash
# Runs the commands of the author's guide as they stand there, on an installation of the build tree:
#     newcomer.sh BUILD_TREE GUIDE CC
# A line that is commented "fails, and says: WORDS" must fail so; every other one must succeed.
set -euo pipefail

build=$1 guide=$2
export CC=$3
place=$build/newcomer

fail() {
    echo "newcomer: $*" >&2
    exit 1
}

rm -rf "$place"
mkdir -p "$place/work"
export PREFIX=$place/prefix
cmake --install "$build" --prefix "$PREFIX" >/dev/null
export PATH=$PREFIX/bin:$PATH
unset ONEHEAD_BACKEND_PATH

mapfile -t lines < <(awk '/^```/ { inside = 0 } inside { print } /^```sh$/ && !seen { inside = 1; seen = 1 }' "$guide")
((${#lines[@]} >= 5)) || fail "$guide has ${#lines[@]} commands in its first block, expected the way from copy to run"
((${#lines[@]} < 10)) || fail "$guide takes ${#lines[@]} commands, expected fewer than ten"

cd "$place/work"
failures=0
for line in "${lines[@]}"; do
    echo "\$ $line"
    if [[ $line =~ fails,\ and\ says:\ (.*)$ ]]; then
        words=${BASH_REMATCH[1]}
        eval "$line" >"$place/output" 2>&1 && fail "this succeeded: $line"
        grep -qF "$words" "$place/output" || fail "'$words' isn't in what it said: $(tail -5 "$place/output")"
        failures=$((failures + 1))
    else
        eval "$line" >"$place/output" 2>&1 || fail "this failed: $line: $(tail -5 "$place/output")"
    fi
done
((failures == 1)) || fail "$failures commands of the guide fail, expected the one that shows a defect"
echo "${#lines[@]} commands: copied, built, wrong and seen to be, right again, run"
