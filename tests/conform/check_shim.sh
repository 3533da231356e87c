#!/bin/bash
# Whether the conformance kit rejects the shim with a defect, and says which operation is wrong:
#     check_shim.sh COMMAND PLUGIN DEFECT OPERATION
# Every failure must be the operation's, and the line that it prints must repeat it. 77: left out on this machine.
set -uo pipefail

command=$1 plugin=$2 defect=$3 operation=$4
export ONEHEAD_SHIM_DEFECT=$defect

fail() {
    echo "check_shim: $defect: $*" >&2
    exit 1
}

# One tile format of an operation of many cases shows as much as all.
filter=$operation
[[ $operation != tile_stats_grad ]] || filter=$operation/f32

output=$("$command" conform "$plugin" --filter "$filter" 2>&1)
status=$?
echo "$output" | grep -A2 '^FAIL' | head -9

[[ $defect != crash ]] || {
    [[ $status == 1 && $output == *"$operation/refused crashed"*"repeat: onehead conform"* ]] ||
        fail "expected exit code 1 and the name of the case, got $status: $output"
    exit 0
}
if [[ $defect == offset-32-* && $status == 0 && $output == *"memory to spare"* ]]; then
    echo "$output" | grep 'memory to spare'
    exit 77
fi
[[ $status == 1 ]] || fail "expected exit code 1, got $status: $output"
others=$(echo "$output" | grep '^FAIL' | grep -v "^FAIL $operation/")
[[ -z $others ]] || fail "other operations were named: $others"

repeat=$(echo "$output" | sed -n 's/^  repeat: onehead //p' | head -1)
[[ -n $repeat ]] || fail "no line repeats the failure: $output"
read -ra words <<<"$repeat"
again=$("$command" "${words[@]}" 2>&1)
[[ $? == 1 ]] || fail "'onehead $repeat' doesn't repeat the failure: $again"
[[ $(echo "$again" | grep -c '^FAIL') == 1 ]] || fail "'onehead $repeat' names not one failure: $again"
