"""Every golden case under every policy, in whole steps, in chunks and in panels: figures, gradients
and rows as the float64 oracle says (bounds: command.py). ONEHEAD_TEST_BACKEND names another backend
than the command's own."""

import concurrent.futures
import json
import os
import re
import sys
import tempfile
import unittest

import numpy as np

import command
from command import GOLDEN, GRADIENTS, UNIT, FIGURES, safetensors

with open(os.path.join(GOLDEN, "cases.json")) as file:
    CASES = json.load(file)


def smallest_memory(arguments):
    """The budget that the command asks for when it gets too little."""
    done = command.run("run", *arguments, "--policy", "recompute", "--memory", "1")
    if done.returncode == 0:
        return None  # T = 0 needs nothing
    found = re.search(r"(\d+) bytes$", done.stderr.strip())
    if done.returncode != 5 or not found:
        raise AssertionError(f"--memory 1: exit {done.returncode}, {done.stderr}")
    return found.group(1)


def ways(arguments, block):
    """Options that must not change an answer."""
    yield ["--policy", "cached"]
    yield ["--policy", "cached", "--chunk", block]
    yield ["--policy", "recompute"]
    yield ["--policy", "recompute", "--chunk", 2 * block]
    yield ["--policy", "naive"]
    yield ["--policy", "naive", "--chunk", block]
    memory = smallest_memory(arguments)
    if memory:
        yield ["--policy", "recompute", "--memory", memory]


BACKEND = os.environ.get("ONEHEAD_TEST_BACKEND", "openblas")


class Expected:
    def __init__(self, name):
        self.name = name
        self.entry = CASES[name]
        self.path = os.path.join(GOLDEN, "cases", name)
        self.tensors, _ = safetensors.read(self.path)
        has_target = "target_hidden" in self.tensors
        chosen, self.factors = command.factors_of(self.entry["args"], has_target)
        self.block = chosen.block_size
        weight = self.tensors["expected.weight"]
        den = self.entry["loss_den"]
        unit = abs(chosen.upstream) / den if den else 0.0
        unit *= self.factors * abs(chosen.transform.scale)
        norm = command.row_norms(self.tensors["lm_head"]).max(initial=0)
        self.row_unit = unit * norm * weight  # [T]
        hidden = command.row_norms(self.tensors["draft_hidden"]).max(initial=0)
        self.head_unit = unit * hidden * weight.sum()

    def tensor(self, name):
        return self.tensors["expected." + name]

    def differences(self, folder):
        stem = os.path.join(folder, self.name)
        grad, rows = stem + ".grad", stem + ".rows"
        head = "head_grad" in self.entry["tags"]
        arguments = [self.path, *self.entry["args"].split(), "--threads", 1, "--grad", grad,
                     "--rows", rows, "--backend", BACKEND, *(["--grad-head"] if head else [])]
        for way in ways(arguments, self.block):
            for line in self.run_differences([*arguments, *way], grad, rows, head):
                yield f"{self.name} {' '.join(map(str, way))}: {line}"

    def run_differences(self, arguments, grad, rows, head):
        got = command.run_json("run", *arguments)
        unit = np.sqrt((self.row_unit ** 2).sum())
        yield from command.figure_differences(got, self.entry, self.factors, unit)
        yield from self.gradient_differences(safetensors.read(grad)[0], head)
        yield from self.row_differences(safetensors.read(rows)[0])

    def gradient_differences(self, got, head):
        want = self.tensor("draft_hidden.grad")
        if got["draft_hidden.grad"].shape != want.shape:
            yield f"draft_hidden.grad has shape {got['draft_hidden.grad'].shape}"
            return
        off = np.linalg.norm(got["draft_hidden.grad"] - want, axis=1)
        bound = GRADIENTS * np.linalg.norm(want, axis=1) + UNIT * self.row_unit
        for row in np.flatnonzero(~(off <= bound)):
            yield f"draft_hidden.grad row {row} is off by {off[row]:.2e} of {bound[row]:.1e}"
        if not head:
            return
        want = self.tensor("lm_head.grad")
        off = np.linalg.norm(got["lm_head.grad"] - want)
        bound = GRADIENTS * np.linalg.norm(want) + UNIT * self.head_unit
        if not off <= bound:
            yield f"lm_head.grad is off by {off:.2e} of {bound:.1e}"

    def row_differences(self, got):
        for name in ("label", "argmax", "rank", "topk_id"):
            if not np.array_equal(got[name], self.tensor(name)):
                at = np.argwhere(got[name] != self.tensor(name))[0]
                yield f"{name}{at} is {got[name][tuple(at)]}, not {self.tensor(name)[tuple(at)]}"
        for name, scale in (("row_loss", self.factors), ("weight", 0), ("topk_logprob", 1)):
            want = self.tensor(name)
            with np.errstate(invalid="ignore"):
                off = np.where(got[name] == want, 0, np.abs(got[name] - want))
                bound = np.where(np.isfinite(want), FIGURES * np.abs(want) + UNIT * scale, 0)
            if not np.all(off <= bound):
                at = tuple(np.argwhere(~(off <= bound))[0])
                yield f"{name}{at} is {got[name][at]}, expected {want[at]} within {bound[at]:.1e}"


class TestGolden(unittest.TestCase):
    def test_every_case_gives_the_oracles_answers_in_every_way(self):
        only = os.environ.get("ONEHEAD_CASES", "").split()
        with tempfile.TemporaryDirectory() as folder, \
                concurrent.futures.ThreadPoolExecutor(2) as pool:
            def check(name):
                return list(Expected(name).differences(folder))
            names = [n for n in CASES if not only or n.split(".")[0] in only]
            self.assertGreater(len(names), 0)
            lines = [line for found in pool.map(check, names) for line in found]
        self.assertEqual(lines, [], f"\n{len(lines)} differences\n" + "\n".join(lines[:40]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
