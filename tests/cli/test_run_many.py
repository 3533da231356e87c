"""`run` over many batches: the sums of all of them, whatever interrupts the pass."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import numpy as np

import command
from command import ONEHEAD, run, safetensors

BLOCK = 16
VOCAB, HIDDEN = 67, 12


def make_batch(path, rng, rows, head=None, target=True, poison=None):
    draft = rng.normal(size=(rows, HIDDEN)).astype(np.float32)
    tensors = {"draft_hidden": draft,
               "loss_mask": rng.choice(np.array([0, 0.5, 1], np.float32), rows),
               "label": rng.integers(0, VOCAB, rows)}
    if poison is not None:
        draft[poison], tensors["loss_mask"][poison] = np.nan, 1
    if target:
        tensors["target_hidden"] = (draft + 0.3 * rng.normal(size=draft.shape)).astype(np.float32)
        tensors["target_hidden"] = np.nan_to_num(tensors["target_hidden"])
    if head is not None:
        tensors["lm_head"] = head
    safetensors.write(path, tensors)
    return tensors


class TestMany(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.batches = os.path.join(self.folder, "batches")
        os.mkdir(self.batches)
        self.rng = np.random.default_rng(5)
        self.head = self.path("head.safetensors")
        self.weight = self.rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
        safetensors.write(self.head, {"lm_head": self.weight})
        self.parts = []
        for i, rows in enumerate((32, 64, 16, 48, 32)):
            poison = 17 if i == 3 else None
            self.parts.append(make_batch(os.path.join(self.batches, f"b{i}.safetensors"), self.rng, rows, poison=poison))
        with open(os.path.join(self.batches, "notes.txt"), "w") as file:
            file.write("not a batch")

    def path(self, name):
        return os.path.join(self.folder, name)

    def many(self, *arguments, **more):
        done = run("run", *arguments, "--lm-head", self.head, "--threads", "1", "--json", **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def whole(self):
        """All batches as one."""
        path = self.path("whole.safetensors")
        safetensors.write(path, {name: np.concatenate([p[name] for p in self.parts]) for name in self.parts[0]})
        return command.run_json("run", path, "--lm-head", self.head, "--threads", "1")

    def assert_same_figures(self, got, want):
        """Counts exactly; sums of sums are rounded in another order, and products of other shapes in f32."""
        self.assertEqual(got["nonfinite_rows"], 1)
        for name in ("rows", "supervised", "blocks", "nonfinite_rows", "slot_hits", "slot_count"):
            self.assertEqual(got[name], want[name], name)
        for k in want["topk"]:
            self.assertEqual(got["topk"][k]["hits"], want["topk"][k]["hits"])
            self.assertEqual(got["topk"][k]["streak_sum"], want["topk"][k]["streak_sum"])
        for name in ("loss", "loss_num", "loss_den", "alpha", "tau", "eal", "draft_entropy", "target_top1"):
            self.assertAlmostEqual(got[name], want[name], delta=command.FIGURES * max(abs(want[name]), 1), msg=name)

    def test_many_batches_give_the_figures_of_one_that_holds_them_all(self):
        want = self.whole()
        for arguments in ([self.batches], [os.path.join(self.batches, "b?.safetensors")],
                          [os.path.join(self.batches, f"b{i}.safetensors") for i in range(5)],
                          [self.batches, "--prefetch", "1"], [self.batches, "--policy", "recompute", "--chunk", "16"]):
            got = self.many(*arguments)
            self.assertEqual(got["batches"], 5)
            self.assert_same_figures(got, want)
            self.assertIsNone(got["grad_norm"])

    def test_a_device_with_memory_of_its_own_gives_the_same_sums(self):
        near, far = self.many(self.batches), self.many(self.batches, "--backend", os.environ["ONEHEAD_FAR"])
        for name in ("loss", "loss_num", "supervised", "slot_hits", "tau"):
            self.assertEqual(near[name], far[name])

    def test_batches_with_weights_of_their_own(self):
        """What is kept of one, converted, is not taken for the next one."""
        total = 0.0
        for i, p in enumerate(self.parts[:3]):
            head = (self.weight * (i + 1)).astype(np.float16)
            path = self.path(f"own{i}.safetensors")
            safetensors.write(path, {**p, "lm_head": head})
            total += command.run_json("run", path, "--threads", "1")["loss_num"]
        done = run("run", self.path("own?.safetensors"), "--threads", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(json.loads(done.stdout)["loss_num"], total, delta=1e-5 * abs(total))

    def test_a_finished_pass_is_told_again_from_its_file(self):
        state = self.path("state.json")
        first = self.many(self.batches, "--resume", state)
        again = self.many(self.batches, "--resume", state)
        self.assertEqual(again["batches_resumed"], 5)
        for name in ("loss", "loss_num", "rows", "topk", "slot_hits", "eal", "tau", "gemms"):
            self.assertEqual(first[name], again[name])

    def stop_at(self, index, state):
        """A pass that ends with an error at a batch; gives what is to be written there instead."""
        bad = os.path.join(self.batches, f"b{index}.safetensors")
        with open(bad, "rb") as file:
            good = file.read()
        with open(bad, "wb") as file:
            file.write(b"?" * 100)
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1", "--json", "--resume", state)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn(f"b{index}.safetensors", done.stderr)
        return bad, good

    def assert_same_sums(self, got, want):
        for name in ("loss", "loss_num", "loss_den", "alpha", "tau", "draft_entropy", "rows", "topk", "gemms"):
            self.assertEqual(got[name], want[name], name)

    def test_an_interrupted_pass_goes_on_to_the_same_sums(self):
        """A bad fourth file ends the first pass; a good one in its place goes on with it."""
        plain = self.many(self.batches)
        state = self.path("state.json")
        bad, good = self.stop_at(3, state)
        with open(bad, "wb") as file:
            file.write(good)
        got = self.many(self.batches, "--resume", state)
        self.assertEqual(got["batches_resumed"], 3)
        self.assert_same_sums(got, plain)

    def test_batches_may_be_added_to_a_pass(self):
        state = self.path("state.json")
        self.many(self.batches, "--resume", state)
        make_batch(os.path.join(self.batches, "c.safetensors"), self.rng, 48)
        got = self.many(self.batches, "--resume", state)
        self.assertEqual((got["batches"], got["batches_resumed"]), (6, 5))
        self.assert_same_sums(got, self.many(self.batches))

    def test_a_batch_that_is_written_while_the_pass_runs_counts_as_it_was_read(self):
        """The file of sums is a FIFO: its reader has made its list of batches and waits."""
        state, fifo = self.path("state.json"), self.path("fifo")
        bad, good = self.stop_at(3, state)
        with open(state) as file:
            saved = file.read()
        os.mkfifo(fifo)
        process = subprocess.Popen([ONEHEAD, "run", self.batches, "--lm-head", self.head, "--threads", "1", "--json",
                                    "--resume", fifo], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with open(fifo, "w") as file:
            with open(bad, "wb") as batch:
                batch.write(good)
            file.write(saved)
        with open(fifo) as file, open(state, "w") as copy:
            copy.write(file.read())
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, err), (0, ""))
        self.assertEqual(json.loads(out)["batches_resumed"], 3)
        again = self.many(self.batches, "--resume", state)
        self.assertEqual(again["batches_resumed"], 5)
        self.assert_same_sums(again, json.loads(out))

    def test_an_interrupt_finishes_the_batch_and_saves(self):
        """Enough batches that the signal comes in the middle; whenever it comes, the sums end up the same."""
        for i in range(400):
            os.link(os.path.join(self.batches, "b1.safetensors"), os.path.join(self.batches, f"c{i:03}.safetensors"))
        state, plain = self.path("state.json"), self.many(self.batches)
        arguments = [ONEHEAD, "run", self.batches, "--lm-head", self.head, "--threads", "1", "--json", "--resume", state]
        interrupted = 0
        for delay in (0.005, 0.01, 0.02, 0.05):
            process = subprocess.Popen(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
            if process.returncode == 130 and os.path.exists(state):
                interrupted += 1
                self.assertEqual(out, "")
                self.assertRegex(err, r"\Aonehead: run: stopped after batch \d+ of 405, saved in .*\n\Z")
            self.assertEqual([n for n in os.listdir(self.folder) if "tmp" in n or n.startswith(".")], [])
        got = self.many(self.batches, "--resume", state)
        for name in ("loss", "loss_num", "rows", "tau", "topk", "batches"):
            self.assertEqual(got[name], plain[name], name)

    def test_a_file_of_another_pass_is_refused(self):
        state = self.path("state.json")
        self.many(self.batches, "--resume", state)
        for arguments, expected in (([self.batches, "--topk", "1,2"], "options"),
                                    ([self.batches, "--decay", "none"], "options"),
                                    ([os.path.join(self.batches, "b[01].safetensors")], "files")):
            done = run("run", *arguments, "--lm-head", self.head, "--threads", "1", "--resume", state)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(expected, done.stderr)
        os.utime(os.path.join(self.batches, "b0.safetensors"), ns=(1, 1))
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1", "--resume", state)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Aonehead: run: \S*/b0\.safetensors: changed since .*state\.json.*\n\Z")
        os.utime(self.head, ns=(1, 1))
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1", "--resume", state)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Aonehead: run: \S*head\S*: changed since .*state\.json.*\n\Z")
        for text in ("", "{}", '{"settings": 1, "files": 2}'):
            with open(state, "w") as file:
                file.write(text)
            done = run("run", self.batches, "--lm-head", self.head, "--threads", "1", "--resume", state)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_what_has_no_meaning_is_refused(self):
        empty = self.path("empty")
        os.mkdir(empty)
        no_target = os.path.join(self.batches, "z.safetensors")
        for arguments, code, expected in (
                ([self.batches, "--grad", self.path("g")], 2, "--grad"),
                ([self.batches, "--rows", self.path("r")], 2, "--rows"),
                ([self.batches, "--trace", self.path("t")], 2, "--trace"),
                (["--resume", self.path("s")], 2, "--resume"),
                ([self.batches, "--prefetch", "0"], 2, "--prefetch"),
                ([empty], 3, "empty"),
                ([self.path("none*")], 3, "none"),
                ([os.path.join(self.batches, "b0.safetensors"), self.path("missing")], 3, "missing")):
            done = run("run", *arguments, "--lm-head", self.head, "--threads", "1")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertRegex(done.stderr, rf"\Aonehead: run: .*{expected}.*\n\Z")
            self.assertEqual(done.stdout, "")
        make_batch(no_target, self.rng, 16, target=False)
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1", "--terms", "ce=1", "--labels", "given")
        self.assertEqual(done.returncode, 3)
        self.assertIn("z.safetensors", done.stderr)
        os.remove(no_target)
        bad = os.path.join(self.batches, "b2.safetensors")
        self.parts[2]["loss_mask"][7] = -1
        safetensors.write(bad, self.parts[2])
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Aonehead: run: \S*/b2\.safetensors: loss_mask\[7\] = -1: .*\n\Z")

    def test_a_terminal_shows_a_line_that_fits_it(self):
        for columns in (80, 40):
            terminal, ours = pty.openpty()
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            done = subprocess.run([ONEHEAD, "run", self.batches, "--lm-head", self.head, "--threads", "1", "--json"],
                                  stdout=subprocess.DEVNULL, stderr=ours, timeout=120)
            os.close(ours)
            text = os.read(terminal, 1 << 16).decode()
            os.close(terminal)
            self.assertEqual(done.returncode, 0)
            lines = re.sub(r"\x1b\[K", "", text).split("\r")
            self.assertEqual(lines[-1], "")  # taken back
            self.assertLess(max(map(len, lines)), columns)
            self.assertIn("0/5 batches, queue ", text)
            self.assertRegex(text, r"4/5 batches, [\d.,]+/s, \d")
            if columns == 80:
                self.assertRegex(text, r"4/5 batches, [\d.,]+/s, [\d,]+ tokens/s, \d+ s left, queue \d/4")

    def test_the_table_says_what_the_limit_is(self):
        done = run("run", self.batches, "--lm-head", self.head, "--threads", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^rate .* tokens/s; the (device|reader) is the limit")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
