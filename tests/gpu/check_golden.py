"""Golden cases on an accelerator: check_golden.py ONEHEAD [--backend NAME] [--tile FORMAT]

Runs `onehead run` on every case of golden/cases.json with the case's own options and compares its JSON with the float64
values there.

Bounds. Counts are exact where no 16-bit tile rounds a logit; figures move by what f32 logits, exponentials and sums move
them: 5e-6 of their size, and 2^-23 times the largest logits (a few tens). With hidden states and weights of 16 bits the
gradient tile has 16 bits too, because products take two operands of one dtype. Its elements are differences already when
they are rounded, each by at most 2^-8 (bf16) or 2^-11 (f16) of itself and in any direction, so a row of dD moves by that
part of |dz| |W|, which for rows that are not made to cancel is the size of dz W: twice that part is allowed.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden")
UNIT = {"F32": 0.0, "BF16": 2.0**-8, "F16": 2.0**-11}


def dtypes(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"}


def flatten(value, prefix=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{prefix}[{index}]")
    elif isinstance(value, bool) or value is None or isinstance(value, (int, float)):
        yield prefix, value


def bound(key, want, unit):
    if key.startswith(("grad_", "head_grad_")):
        return (2e-5 + 2 * unit) * abs(want) + 1e-7
    return 5e-6 * abs(want) + 64 * 2.0**-23


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("onehead")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--tile", default="f32")
    options = parser.parse_args()
    with open(os.path.join(FOLDER, "cases.json")) as file:
        cases = json.load(file)


    def run(name):
        command = [options.onehead, "run", os.path.join(FOLDER, "cases", name), "--backend", options.backend]
        command += ["--tile", options.tile, "--json", *cases[name].get("args", "").split()]
        return subprocess.run(command, capture_output=True, text=True)

    pool = ThreadPoolExecutor(4)  # most of a run is opening the device
    runs = {name: pool.submit(run, name) for name in cases}
    failed, compared, worst = [], 0, (0.0, "")
    for name, case in sorted(cases.items()):
        path = os.path.join(FOLDER, "cases", name)
        kinds = dtypes(path)
        unit = 0.0
        if kinds.get("draft_hidden") == kinds.get("lm_head"):
            unit = UNIT[kinds["draft_hidden"]]
        done = runs[name].result()
        if done.returncode != 0:
            failed.append(f"{name}: exit status {done.returncode}: {done.stderr.strip()}")
            continue
        got = dict(flatten(json.loads(done.stdout)))
        for key, want in flatten(case):
            if key not in got or key in ("args", "why") or key.startswith("tags"):
                continue
            compared += 1
            value = got[key]
            if want is None or value is None:
                if want is not value:
                    failed.append(f"{name}: {key} = {value}, expected {want}")
                continue
            allowed = bound(key, want, unit)
            if isinstance(want, int) and not isinstance(want, bool):
                allowed = 0
            off = abs(value - want)
            if allowed and off / allowed > worst[0]:
                worst = (off / allowed, f"{name}: {key}")
            if math.isnan(off) or off > allowed:
                failed.append(f"{name}: {key} = {value}, expected {want} within {allowed:.3g}")
    for line in failed:
        print(line)
    print(f"{len(cases)} cases, {compared} figures, {len(failed)} failures; largest error {worst[0]:.3f} of its bound, {worst[1]}")
    sys.exit(bool(failed) or compared < 1000)


if __name__ == "__main__":
    main()
