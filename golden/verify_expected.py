"""Compares the oracle with an expected.json that was made elsewhere.

    python3 verify_expected.py FOLDER

FOLDER holds expected.json, the batches it names and, for batches without one,
lm_head.safetensors. Counts must be equal, floats within 1e-9 relative. Exit 1 otherwise.
"""

import json
import os
import sys

import oracle
import options as command
import safetensors_numpy as safetensors

TOLERANCE = 1e-9  # float64 sums over some thousand rows and columns, in another order


def differences(name, got, want):
    """(path, relative error) of every number; errors of counts and of missing keys are
    infinite."""
    if isinstance(want, dict):
        for key, entry in want.items():
            yield from differences(f"{name}.{key}", (got or {}).get(key), entry)
    elif isinstance(want, list):
        same_length = isinstance(got, list) and len(got) == len(want)
        for i, entry in enumerate(want):
            yield from differences(f"{name}[{i}]", got[i] if same_length else None, entry)
    elif isinstance(want, float) and isinstance(got, (int, float)):
        yield name, abs(got - want) / max(abs(want), 1e-12)
    else:
        yield name, 0.0 if got == want and type(got) is type(want) else float("inf")


def compare(folder):
    """Number of option sets, worst relative error, paths that are off."""
    count, worst, off = 0, 0.0, []
    with open(os.path.join(folder, "expected.json")) as file:
        expected = json.load(file)
    for batch, sets in expected.items():
        tensors, _ = safetensors.read(os.path.join(folder, batch))
        if "lm_head" not in tensors:
            tensors.update(safetensors.read(os.path.join(folder, "lm_head.safetensors"))[0])
        answers = oracle.Oracle(tensors)
        for name, want in sets.items():
            chosen = command.parse_args(want["args"])
            want = {key: value for key, value in want.items() if key != "args"}
            got = answers.run(chosen).summary
            count += 1
            for path, error in differences(f"{batch}/{name}", got, want):
                worst = max(worst, error)
                if error > TOLERANCE:
                    off.append(f"{path} {error:.1e}")
    return count, worst, off


if __name__ == "__main__":
    count, worst, off = compare(sys.argv[1])
    print(f"{count} option sets, worst relative error {worst:.1e}, {len(off)} off")
    for line in off[:20]:
        print(" ", line)
    sys.exit(bool(off))
