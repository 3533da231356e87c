"""Runs the command in tests, and the bounds that its numbers are held to.

Set by CTest: ONEHEAD, the executable; ONEHEAD_GOLDEN, the folder golden/.

Bounds. The command's logits are f32 sums, so its figures carry their rounding, 2^-24 of a logit,
seen through the figure's formula. With logits of a few tens a loss moves by up to some 80 such
units of itself, and never by less than the rounding of numbers near 1:

    figures    |a - b| <= 5e-6 |b| + 2^-20 scale      5e-6 = 84 * 2^-24
    gradients  |a - b| <= 2e-5 |b| + 2^-20 s          by row, in the 2-norm

scale is what a figure is made of before its parts cancel: the terms' factors for a row's loss. s is
the same for a row of the gradient: w upstream / N * factors * |scale| * max |W_v|. Counts, ids and
ranks are equal: golden/conditioning.py keeps every decision clear of rounding.
"""

import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np

ONEHEAD = os.environ["ONEHEAD"]
GOLDEN = os.environ["ONEHEAD_GOLDEN"]
sys.path.insert(0, GOLDEN)

import options as command_options  # noqa: E402
import safetensors_numpy as safetensors  # noqa: E402, F401

UNIT = 2.0 ** -20
FIGURES = 5e-6
GRADIENTS = 2e-5
# Ratios of equal counts: the division's rounding.
RATIOS = re.compile(r"topk\.\d+\.(rate|streak)$|eal$")
# Keys of an expected entry that are no figures.
NOT_FIGURES = ("args", "why", "tags")


def run(*arguments, **more):
    """The finished process; text in and out."""
    more.setdefault("capture_output", True)
    return subprocess.run([ONEHEAD, *map(str, arguments)], text=True, timeout=600, **more)


def run_json(*arguments):
    done = run(*arguments, "--json")
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, arguments))}: exit {done.returncode}, "
                             f"{done.stderr.strip()}")
    return json.loads(done.stdout)


def flat(value, name=""):
    """{"topk.4.hits": 12, "slot_hits[3]": 1, ...} of nested objects and lists."""
    if isinstance(value, dict):
        result = {}
        for key, entry in value.items():
            result.update(flat(entry, f"{name}.{key}" if name else key))
        return result
    if isinstance(value, list):
        result = {}
        for index, entry in enumerate(value):
            result.update(flat(entry, f"{name}[{index}]"))
        return result
    return {name: value}


def figure_bound(name, want, expected, factors):
    if RATIOS.search(name):
        return 1e-12 * abs(want)
    if name.startswith("grad_"):
        return GRADIENTS * abs(want) + UNIT * expected["row_unit"]
    scale = 1.0
    if name in ("loss", "loss_num"):
        scale = factors * expected["weight_sum"]
        scale /= expected["loss_den"] if name == "loss" and expected["loss_den"] else 1
    if name == "weight_sum" or name == "loss_den":
        scale = abs(want)
    return FIGURES * abs(want) + UNIT * scale


def figure_differences(got, want, factors=1.0, row_unit=0.0):
    """Lines that say where the command's JSON isn't what is expected of it.

    row_unit: s of the whole gradient, for the figures of gradients that cancel."""
    expected = dict(want, row_unit=row_unit)
    got_flat = flat(got)
    for name, value in flat({k: v for k, v in want.items() if k not in NOT_FIGURES}).items():
        if name not in got_flat:
            yield f"{name} is missing, expected {value}"
        elif isinstance(value, int) or value is None or got_flat[name] is None:
            if got_flat[name] != value:
                yield f"{name} is {got_flat[name]}, expected {value}"
        elif not abs(got_flat[name] - value) <= figure_bound(name, value, expected, factors):
            yield (f"{name} is {got_flat[name]}, expected {value} within "
                   f"{figure_bound(name, value, expected, factors):.1e}")


def factors_of(args, has_target=True):
    chosen = command_options.parse_args(args, has_target)
    return chosen, sum(abs(factor) for factor in chosen.terms.values())


def row_norms(matrix):
    norms = np.sqrt((matrix.astype(np.float64) ** 2).sum(axis=1))
    return norms[np.isfinite(norms)]
