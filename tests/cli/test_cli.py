"""The command as its users see it: answers on the sample, options, refusals, files, exit codes."""

import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import command
from command import GOLDEN, ONEHEAD, run, run_json, safetensors

SAMPLE = os.path.join(GOLDEN, "sample.safetensors")
with open(os.path.join(GOLDEN, "sample.json")) as file:
    SAMPLE_SETS = json.load(file)["sample.safetensors"]

RUN_KEYS = {
    "backend", "policy", "rows", "supervised", "blocks", "weight_sum", "loss", "loss_num",
    "loss_den", "terms", "grad_norm", "grad_abs_max", "topk", "slot_hits", "slot_count", "eal",
    "alpha", "tau", "draft_entropy", "draft_top1", "target_top1", "nonfinite_rows", "projections",
    "gemms", "workspace_bytes", "tile", "seconds"}

# Enough of them to tell two batches apart.
FIGURES = ("weight_sum", "loss_den", "loss", "grad_norm", "topk", "slot_hits")

RUN_OPTIONS = {
    "--lm-head", "--backend", "--device", "--policy", "--chunk", "--terms", "--labels", "--decay",
    "--norm", "--first-slot", "--block-size", "--topk", "--gap", "--tile", "--memory", "--grad",
    "--grad-head", "--rows", "--json", "--eta", "--label-smoothing", "--z-loss", "--softcap",
    "--scale", "--vocab-valid", "--threads", "--upstream", "--grad-dtype", "--metrics",
    "--trace", "--target-scale", "--target-softcap", "--outside", "--grad-bias",
    "--resume", "--prefetch", "--help"}


def small(rows=32, vocab=19, hidden=8, seed=3):
    """A batch that takes no time."""
    rng = np.random.default_rng(seed)
    return {
        "draft_hidden": rng.normal(size=(rows, hidden)).astype(np.float32),
        "target_hidden": rng.normal(size=(rows, hidden)).astype(np.float32),
        "lm_head": rng.normal(size=(vocab, hidden)).astype(np.float32),
        "label": rng.integers(0, vocab, rows).astype(np.int32),
        "loss_mask": np.ones(rows, np.uint8),
    }


class InFolder(unittest.TestCase):
    """Tests with a folder of their own, which must hold nothing unexpected at the end."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name="batch.safetensors", tensors=None, **changes):
        """Writes a small batch; a change of None leaves the tensor out."""
        everything = dict(small() if tensors is None else tensors, **changes)
        kept = {name: tensor for name, tensor in everything.items() if tensor is not None}
        safetensors.write(self.path(name), kept)
        return self.path(name)

    def assert_refused(self, code, parts, *arguments):
        """Exit code, nothing on stdout, and one line on stderr that names what it must."""
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
        self.assertEqual(done.stdout, "", arguments)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith(f"onehead: {arguments[0]}: "), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr, arguments)


class TestAnswers(unittest.TestCase):
    def test_sample_gives_the_golden_answers_in_every_option_set_policy_and_chunk(self):
        ways = [(policy, chunk) for policy in ("cached", "recompute", "naive")
                for chunk in ((), ("--chunk", 512), ("--chunk", 96))]
        self.assertEqual(len(SAMPLE_SETS), 18)
        lines = []
        for index, (name, want) in enumerate(sorted(SAMPLE_SETS.items())):
            # Every set meets every policy and every chunk, and every pair meets six sets.
            for way in range(3):
                policy, chunk = ways[(4 * way + index) % 3 + 3 * way]
                got = run_json("run", *want["args"].split(), "--policy", policy, *chunk)
                self.assertEqual(got["policy"], policy)
                lines += [f"{name} {policy} {chunk}: {line}"
                          for line in command.figure_differences(got, want)]
        self.assertEqual(lines, [])

    def test_sample_gives_the_golden_answers_in_panels(self):
        got = run_json("run", "--policy", "recompute", "--memory", "8M")
        self.assertEqual(list(command.figure_differences(got, SAMPLE_SETS["kl_exp10"])), [])
        self.assertLessEqual(got["workspace_bytes"], 8 << 20)

    def test_json_has_exactly_the_documented_keys(self):
        got = run_json("run")
        self.assertEqual(set(got), RUN_KEYS)
        self.assertEqual(set(got["projections"]), {"draft", "target"})
        self.assertLessEqual({"read", "plan", "run", "total"}, set(got["seconds"]))
        self.assertEqual(set(got["topk"]), {"1", "4", "8"})
        self.assertEqual(set(got["topk"]["4"]), {"hits", "rate", "streak_sum", "streak"})

    def test_json_numbers_read_back_as_the_same_doubles(self):
        text = run("run", "--json").stdout
        loss = re.search(r'"loss": ([^,\n]*)', text).group(1)
        self.assertGreaterEqual(len(loss.replace(".", "").strip("0")), 15)
        self.assertEqual(repr(float(loss)), repr(json.loads(text)["loss"]))

    def test_the_file_of_the_sample_and_the_built_in_sample_are_the_same(self):
        built_in, from_file = run_json("run"), run_json("run", SAMPLE)
        del built_in["seconds"], from_file["seconds"]
        self.assertEqual(built_in, from_file)

    def test_table_shows_the_figures_of_the_json(self):
        table, got = run("run").stdout, run_json("run")
        for value in (got["loss"], got["grad_norm"], got["eal"], got["tau"]):
            self.assertIn(f"{value:.6g}", table)
        self.assertIn(f"{got['topk']['4']['hits']} / ", table)

    def test_policies_project_as_often_as_they_say(self):
        count = {}
        for policy in ("cached", "recompute", "naive"):
            got = run_json("run", "--policy", policy, "--chunk", 768, "--topk", "4,8")
            count[policy] = sum(got["projections"].values()), got["gemms"]
        self.assertEqual(count, {"cached": (4, 6), "recompute": (8, 10), "naive": (16, 18)})


class TestOptions(InFolder):
    def test_help_names_every_option_and_nothing_else(self):
        for arguments in (("--help",), ("-h",)):
            done = run("run", *arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.M)), RUN_OPTIONS)
            self.assertEqual(re.findall(r"^.{82,}$| $", done.stdout, re.M), [])
        for name in ("plan", "check", "bench", "backends"):
            done = run(name, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("--json", done.stdout)

    def test_help_of_the_command_names_the_subcommands(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for name in ("run", "plan", "check", "bench", "report", "backends"):
            self.assertRegex(done.stdout, rf"(?m)^  {name} ")
        self.assertRegex(run("--version").stdout, r"^onehead \d+\.\d+\.\d+\n$")

    def test_unknown_commands_and_options_are_usage_errors(self):
        for arguments in ((), ("walk",), ("--walk",)):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr.count("\n"), 1)
        self.assert_refused(2, ["--walk", "--help"], "run", "--walk")
        self.assert_refused(2, ["-x"], "run", "-x")
        self.assert_refused(2, ["--json", "'yes'", "no value"], "run", "--json=yes")
        self.assert_refused(2, ["--chunk", "no value", "ROWS"], "run", "--chunk")
        self.assert_refused(3, ["a.safetensors"], "run", "a.safetensors", "b.safetensors")
        self.assert_refused(2, ["extra"], "plan", "extra")

    def test_values_without_meaning_are_named_with_what_was_expected(self):
        refusals = {
            "--device": ["-1", "x", "1.5", "", "99999999999999999999"],
            "--threads": ["0", "-1", "4097", "two"],
            "--first-slot": ["-1", "16", "x"],
            "--block-size": ["0", "-16", "16x", "1e3"],
            "--chunk": ["0", "-16", "15", "16.0", " 16", "1K"],
            "--vocab-valid": ["0", "-1", "8004", "all"],
            "--memory": ["0", "-1", "1.5G", "2g", "G", "2GB", "17179869185G", "0x10", ""],
            "--eta": ["x", "nan", "inf", "-1", "1e999", "0x1p3", "3 "],
            "--label-smoothing": ["-0.1", "1", "1.1", "nan"],
            "--z-loss": ["-1", "nan"],
            "--upstream": ["nan", "inf", "-inf", "1e309", ""],
            "--scale": ["nan", "1e39", "x"],
            "--softcap": ["0", "-1", "nan", "1e-60"],
            "--policy": ["fast", "", "cached,naive"],
            "--tile": ["f64", "F32"],
            "--grad-dtype": ["f16", "double"],
            "--metrics": ["some"],
            "--labels": ["mine", ""],
            "--gap": ["jump"],
            "--terms": ["kl=", "kl=x", "xx=1", "", "kl=1,,ce=1", "kl=1,kl=1", "kl=nan"],
            "--decay": ["exp", "exp:", "exp:0", "exp:x", "dpace:2", "linear:1", "exp:nan"],
            "--norm": ["mean", "nan", "-1", ""],
            "--topk": ["0", "65", "1,,4", "x", "", "-1", "1,1e3"],
        }
        batch = self.write()
        for option, values in refusals.items():
            for value in values:
                arguments = ["run", option + "=" + value]
                if option != "--vocab-valid":
                    arguments.append(batch)
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, f"{arguments}: {done.stderr}{done.stdout}")
                self.assertEqual(done.stdout, "")
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                words = option[2:].replace("-", "[ -_]?")
                self.assertRegex(done.stderr, f"(?i){words}", arguments)
        self.assertEqual(os.listdir(self.folder), ["batch.safetensors"])

    def test_a_number_out_of_range_is_told_the_whole_range_and_its_ends_are_in_it(self):
        huge, real, single = "9" * 19, "1.79769e+308", "3.40282e+38"
        size, vocab = str(2**31 - 1), str(2**31 - 1025)
        ranges = [
            ("run", "--device", "integer", "0", size), ("run", "--threads", "integer", "1", "4096"),
            ("run", "--block-size", "integer", "1", size), ("run", "--first-slot", "integer", "0", size),
            ("run", "--chunk", "integer", "1", size), ("run", "--vocab-valid", "integer", "1", vocab),
            ("run", "--prefetch", "integer", "1", "1024"), ("run", "--eta", "number", "0", real),
            ("run", "--z-loss", "number", "0", real), ("run", "--upstream", "number", "-" + real, real),
            ("run", "--scale", "number", "-" + single, single), ("run", "--target-softcap", "number", "0", single),
            ("plan", "--rows", "integer", "1", size), ("plan", "--hidden", "integer", "1", size),
            ("plan", "--vocab", "integer", "1", vocab), ("plan", "--target-rows", "integer", "0", size),
            ("bench", "--seed", "integer", "0", str(2**53)), ("bench", "--repeats", "integer", "1", "1000"),
            ("bench", "--seconds", "number", "0", "86400")]
        for name, option, kind, least, most in ranges:
            for value in ("x", huge if kind == "integer" else "1e999"):
                self.assert_refused(2, [f"{option}: '{value}', expected a{'n' * (kind == 'integer')} {kind} from {least} to "
                                        f"{most}\n"], name, option, value)
            for value in (least, most):
                refusal = run(name, f"{option}={value}", "--lm-head" if name == "run" else "--dtype", "none").stderr
                self.assertNotIn(f"{option}: '{value}'", refusal)
        self.assert_refused(2, ["'0', expected a number over 0, at most 3.40282e+38\n"], "run", "--softcap", "0")
        self.assert_refused(2, ["'1', expected a number from 0 to less than 1\n"], "run", "--label-smoothing", "1")
        self.assert_refused(2, ["expected 1 to 9223372036854775807 bytes, "], "run", "--memory", "8589934592G")
        self.assert_refused(2, ["a number from 1e-06 to 1e+12, or"], "plan", "--rate", "0")
        self.assert_refused(2, ["--first-slot: 16, expected 0 to 15, "], "run", "--first-slot", "16")

    def test_every_option_is_taken_and_does_something_or_leaves_the_numbers_alone(self):
        batch = self.write()
        base = run_json("run", batch)
        changing = ["--terms=ce=1", "--labels=given", "--decay=none", "--norm=count",
                    "--first-slot=0", "--block-size=8", "--topk=2", "--upstream=0.5",
                    "--scale=0.5", "--softcap=1", "--vocab-valid=18", "--metrics=none"]
        neutral = ["--policy=naive", "--chunk=16", "--tile=f32", "--memory=1M", "--backend=openblas",
                   "--device=0", "--threads=1", "--gap=stop", "--eta=3"]
        same = {"backend", "policy", "tile", "seconds", "projections", "gemms", "workspace_bytes"}
        for option in changing:
            got = run_json("run", batch, option)
            self.assertNotEqual({k: v for k, v in got.items() if k not in same},
                                {k: v for k, v in base.items() if k not in same}, option)
        for option in neutral:
            got = run_json("run", batch, option)
            lines = command.figure_differences(got, {k: base[k] for k in base if k not in same})
            self.assertEqual(list(lines), [], option)
        changing_terms = [("ce=1", "--label-smoothing=0.1"), ("ce=1", "--z-loss=0.1"),
                          ("lk_hybrid=1", "--eta=1")]
        for terms, option in changing_terms:
            plain = run_json("run", batch, "--terms", terms)["loss"]
            self.assertNotEqual(run_json("run", batch, "--terms", terms, option)["loss"], plain)

    def test_gradients_that_overflow_alike_agree(self):
        done = run("check", self.write(), "--upstream", "1e300", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_upstream_scales_the_gradient_and_not_the_loss(self):
        batch = self.write()
        one, part = run_json("run", batch), run_json("run", batch, "--upstream", "-0.37")
        self.assertEqual(one["loss"], part["loss"])
        self.assertAlmostEqual(part["grad_norm"] / one["grad_norm"], 0.37, places=6)

    def test_memory_takes_powers_of_1024(self):
        batch = self.write()
        workspace = run_json("run", batch, "--policy", "cached", "--chunk", 16)["workspace_bytes"]
        self.assertLess(workspace, 1 << 20)
        for memory in (str(1 << 20), "1024K", "1M", "1G", "8191G"):
            self.assertEqual(run("run", batch, "--memory", memory).returncode, 0, memory)
        self.assert_refused(5, ["memory", "1024", "at least"], "run", batch, "--memory", "1K")

    def test_metrics_can_be_left_out(self):
        batch = self.write()
        one_read = run_json("run", batch, "--metrics", "one-read")
        self.assertIsNone(one_read["alpha"])
        self.assertIsNone(one_read["tau"])
        self.assertIsNotNone(one_read["draft_entropy"])
        none = run_json("run", batch, "--metrics", "none")
        self.assertEqual((none["topk"], none["slot_hits"], none["eal"]), ({}, [], None))
        self.assertEqual(none["loss"], run_json("run", batch)["loss"])
        self.assertEqual(run("run", batch, "--metrics", "none").returncode, 0)

    def test_double_dash_ends_the_options(self):
        shutil.copy(self.write(), self.path("--json"))
        done = subprocess.run([ONEHEAD, "run", "--", "--json"], cwd=self.folder, text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--json", done.stdout.splitlines()[0])


class TestInput(InFolder):
    def test_without_a_target_labels_are_given_and_the_term_is_ce(self):
        batch = self.write(target_hidden=None)
        got = run_json("run", batch)
        self.assertEqual(set(got["terms"]), {"ce"})
        self.assertEqual(set(got), RUN_KEYS - {"alpha", "tau", "target_top1"})
        same = run_json("run", batch, "--terms", "ce=1", "--labels", "given")
        self.assertEqual(got["loss"], same["loss"])
        self.assertEqual(run("run", batch).returncode, 0)

    def test_each_bad_tensor_is_named_with_what_was_expected(self):
        s = small()
        cases = [
            (dict(draft_hidden=None), ["draft_hidden"]),
            (dict(lm_head=None), ["lm_head", "--lm-head"]),
            (dict(draft_hidden=s["draft_hidden"][0]), ["draft_hidden", "1 dimensions", "2"]),
            (dict(draft_hidden=s["draft_hidden"].astype(np.float64)), ["F64", "BF16, F16 or F32"]),
            (dict(draft_hidden=s["draft_hidden"][:, :0]), ["draft_hidden", "no columns"]),
            (dict(lm_head=s["lm_head"][:, :7]), ["lm_head", "[19, 7]", "[V, 8]"]),
            (dict(lm_head=s["lm_head"][:0]), ["lm_head", "[0, 8]"]),
            (dict(lm_head=s["lm_head"].astype(np.int32)), ["lm_head", "I32"]),
            (dict(target_hidden=s["target_hidden"][:, :7]), ["target_hidden", "7 columns", "8"]),
            (dict(target_hidden=s["target_hidden"][:31]), ["target_hidden", "31 rows", "32"]),
            (dict(target_hidden=s["target_hidden"][:0], target_row=np.zeros(32, np.int32)),
             ["target_hidden", "[0, 8]", "at least one row", "32"]),
            (dict(target_hidden=s["target_hidden"].astype(np.float16)), ["target_hidden", "f16"]),
            (dict(target_lm_head=s["lm_head"][:18]), ["target_lm_head", "[18, 8]", "[19, 8]"]),
            (dict(target_lm_head=s["lm_head"], target_hidden=None), ["target_lm_head"]),
            (dict(target_row=np.arange(31, dtype=np.int32)), ["target_row", "31", "32"]),
            (dict(target_row=np.arange(32, dtype=np.float32)), ["target_row", "F32", "I32 or I64"]),
            (dict(label=s["label"][:31]), ["label", "31", "32"]),
            (dict(label=s["label"].astype(np.uint8)), ["label", "U8", "I32 or I64"]),
            (dict(label=s["label"].reshape(2, 16)), ["label", "2 dimensions", "1"]),
            (dict(loss_mask=s["loss_mask"].astype(np.int32)), ["loss_mask", "I32"]),
            (dict(loss_mask=-s["loss_mask"].astype(np.float32)), ["mask", "-1"]),
            (dict(loss_mask=np.full(32, np.nan, np.float32)), ["mask", "nan"]),
            (dict(target_row=np.full(32, 32, np.int32)), ["target_row", "32"]),
            (dict(target_row=np.full(32, -1, np.int64)), ["target_row", "-1"]),
            (dict(bias=np.zeros(18, np.float32)), ["bias", "18", "19"]),
            (dict(bias=np.zeros(19, np.int32)), ["bias", "I32"]),
        ]
        for changes, parts in cases:
            batch = self.write(**changes)
            self.assert_refused(3, [*parts], "run", batch, "--grad", self.path("out"))
        rows_40 = self.write(tensors=small(rows=40))
        self.assert_refused(3, ["draft_hidden", "40", "16"], "run", rows_40)
        self.assertEqual(os.listdir(self.folder), ["batch.safetensors"])

    def test_what_the_options_need_must_be_in_the_batch(self):
        no_target = self.write(target_hidden=None)
        self.assert_refused(3, ["target_hidden", "kl"], "run", no_target, "--terms", "ce=1,kl=1")
        self.assert_refused(3, ["target_hidden", "target"], "run", no_target, "--labels", "target")
        no_label = self.write(label=None)
        self.assert_refused(3, ["label", "given"], "run", no_label, "--labels", "given")
        neither = self.write(label=None, target_hidden=None)
        self.assert_refused(3, ["label"], "run", neither)

    def test_files_that_are_no_batches_are_bad_input(self):
        self.assert_refused(3, ["/no/such/file"], "run", "/no/such/file")
        self.assert_refused(3, ["no.safetensors"], "run", "--lm-head", self.path("no.safetensors"))
        self.assert_refused(3, [self.folder], "run", self.folder)
        for name, content in (("empty", b""), ("short", b"\x08\0\0\0"), ("text", b"a" * 100),
                              ("huge", struct.pack("<Q", 1 << 62) + b"{}"),
                              ("brace", struct.pack("<Q", 2) + b"{]")):
            with open(self.path(name), "wb") as out:
                out.write(content)
            self.assert_refused(3, [name], "run", self.path(name))
        with open(self.write(), "rb") as whole, open(self.path("cut"), "wb") as cut:
            cut.write(whole.read()[:-1])
        self.assert_refused(3, ["cut"], "run", self.path("cut"))

    def test_lm_head_option_goes_before_the_batch_and_names_a_tensor(self):
        own = small(seed=3)["lm_head"]
        other = small(seed=4)["lm_head"]
        batch = self.write()
        headless = self.write("headless.safetensors", lm_head=None)
        heads = self.path("heads.safetensors")
        safetensors.write(heads, {"lm_head.weight": other, "model.embed_tokens.weight": own})
        losses = {
            "own": run_json("run", batch)["loss"],
            "embedding": run_json("run", headless, "--lm-head",
                                  heads + ":model.embed_tokens.weight")["loss"],
            "other": run_json("run", batch, "--lm-head", heads)["loss"],
            "headless": run_json("run", headless, "--lm-head", heads)["loss"],
        }
        self.assertEqual(losses["own"], losses["embedding"])
        self.assertEqual(losses["other"], losses["headless"])
        self.assertNotEqual(losses["own"], losses["other"])
        self.assert_refused(3, ["heads", "nothing"], "run", batch, "--lm-head", heads + ":nothing")
        wide = self.path("wide.safetensors")
        safetensors.write(wide, {"lm_head": np.zeros((19, 9), np.float32)})
        self.assert_refused(3, ["wide", "[19, 9]", "[V, 8]"], "run", batch, "--lm-head", wide)

    def test_an_embedding_that_serves_as_the_head_is_named(self):
        batch, checkpoint = self.write(lm_head=None), self.path("checkpoint")
        os.mkdir(checkpoint)
        name = "model.embed_tokens.weight"
        safetensors.write(os.path.join(checkpoint, "model.safetensors"), {name: small()["lm_head"]})
        for arguments in (("run", batch), ("run", batch, batch), ("check", batch)):
            self.assertEqual(run_json(*arguments, "--lm-head", checkpoint)["lm_head_embedding"], name)
            table = run(*arguments, "--lm-head", checkpoint).stdout
            self.assertRegex(table, rf"(?m)^lm_head +the input embedding, {re.escape(name)}$")
            self.assertNotIn("lm_head_embedding", run_json(arguments[0], self.write("own.safetensors")))
        with open(os.path.join(checkpoint, "config.json"), "w") as config:
            config.write('{"tie_word_embeddings": false}')
        for command_name in ("run", "check"):
            self.assert_refused(3, ["model.safetensors", "tie_word_embeddings", "config.json", name], command_name, batch,
                                "--lm-head", checkpoint)
        self.assertEqual(run("run", batch, "--lm-head", f"{checkpoint}:{name}").returncode, 0)

    def test_a_file_whose_tensors_lie_misaligned_gives_the_same_answers(self):
        tensors = {"a": np.zeros(1, np.uint8), **small()}  # one byte in front of all others
        odd = self.write("odd.safetensors", tensors)
        got, want = run_json("run", odd), run_json("run", self.write())
        self.assertEqual(list(command.figure_differences(got, {k: want[k] for k in FIGURES})), [])

    def test_narrow_biases_are_their_values(self):
        bias = np.round(np.random.default_rng(1).normal(size=19) * 16) / 16
        bias[4] = -np.inf
        losses = [run_json("run", self.write(bias=kind(bias)), "--terms", "jsd=1")["loss"]
                  for kind in (np.float32, np.float16, safetensors.BF16)]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    def test_sixteen_bit_states_and_weights_are_taken_as_they_are(self):
        s = small()
        names = ("draft_hidden", "target_hidden", "lm_head")
        for kind in (np.float16, safetensors.BF16):
            narrow = self.write("n.safetensors", **{n: kind(s[n]) for n in names})
            wide_values = safetensors.read(narrow)[0]
            wide = self.write("w.safetensors", **{n: np.float32(wide_values[n]) for n in names})
            got, want = run_json("run", narrow), run_json("run", wide)
            self.assertEqual(list(command.figure_differences(got, {k: want[k] for k in FIGURES})), [])

    def test_inputs_are_left_alone(self):
        batch = self.write()
        with open(batch, "rb") as before:
            content = before.read()
        run_json("run", batch, "--grad", self.path("g"), "--rows", self.path("r"))
        with open(batch, "rb") as after:
            self.assertEqual(after.read(), content)


class TestOutput(InFolder):
    def test_gradient_file_has_the_documented_tensors(self):
        batch = self.write()
        plain, both, narrow = self.path("plain"), self.path("both"), self.path("narrow")
        run_json("run", batch, "--grad", plain)
        self.assertEqual({k: (v.shape, v.dtype) for k, v in safetensors.read(plain)[0].items()},
                         {"draft_hidden.grad": ((32, 8), np.float32)})
        run_json("run", batch, "--grad", both, "--grad-head")
        tensors, _ = safetensors.read(both)
        self.assertEqual({k: v.shape for k, v in tensors.items()},
                         {"draft_hidden.grad": (32, 8), "lm_head.grad": (19, 8)})
        run_json("run", batch, "--grad", narrow, "--grad-dtype", "bf16")
        with open(narrow, "rb") as header:
            self.assertIn(b'"BF16"', header.read(200))
        wide = safetensors.read(plain)[0]["draft_hidden.grad"]
        self.assertTrue(np.array_equal(safetensors.read(narrow)[0]["draft_hidden.grad"],
                                       safetensors.bf16_values(safetensors.bf16_bits(wide))))

    def test_a_gradient_that_no_file_would_hold_is_refused(self):
        batch = self.write(bias=np.zeros(19, np.float32))
        for option in ("--grad-head", "--grad-bias"):
            self.assert_refused(2, [f"{option}: ", "--grad OUT"], "run", batch, option)
            self.assertEqual(run("check", batch, option).returncode, 0)
            self.assertEqual(run("run", batch, option, "--grad", self.path("g")).returncode, 0)

    def test_gradient_in_the_file_has_the_norm_of_the_json(self):
        got = run_json("run", "--grad", self.path("g"))
        grad = safetensors.read(self.path("g"))[0]["draft_hidden.grad"].astype(np.float64)
        self.assertAlmostEqual(np.linalg.norm(grad) / got["grad_norm"], 1, places=6)
        self.assertEqual(np.abs(grad).max(), got["grad_abs_max"])
        self.assertTrue(np.all(grad[::16] == 0))  # slot 0 is never supervised

    def test_rows_file_has_the_documented_tensors(self):
        got = run_json("run", "--rows", self.path("r"), "--topk", "1,4")
        rows, _ = safetensors.read(self.path("r"))
        self.assertEqual({k: (v.shape, v.dtype.str) for k, v in rows.items()}, {
            "row_loss": ((1536,), "<f4"), "weight": ((1536,), "<f4"), "label": ((1536,), "<i4"),
            "argmax": ((1536,), "<i4"), "rank": ((1536,), "<i4"), "topk_id": ((1536, 4), "<i4"),
            "topk_logprob": ((1536, 4), "<f4")})
        weight, loss = rows["weight"].astype(np.float64), rows["row_loss"].astype(np.float64)
        self.assertAlmostEqual((weight * loss).sum() / got["loss_num"], 1, places=6)
        self.assertEqual((rows["rank"] == 0).sum(), got["topk"]["1"]["hits"])
        self.assertEqual(((rows["rank"] >= 0) & (rows["rank"] < 4)).sum(),
                         got["topk"]["4"]["hits"])
        self.assertTrue(np.all(rows["label"][::16] == -1))
        self.assertTrue(np.array_equal(rows["topk_id"][:, 0], rows["argmax"]))

    def test_rows_of_a_list_of_one_are_the_argmax(self):
        run_json("run", self.write(), "--rows", self.path("r"), "--topk", "1")
        rows, _ = safetensors.read(self.path("r"))
        self.assertTrue(np.array_equal(rows["topk_id"][:, 0], rows["argmax"]))

    def test_outputs_replace_a_file_and_keep_a_link(self):
        batch = self.write()
        with open(self.path("old"), "w") as old:
            old.write("old")
        os.symlink("old", self.path("link"))
        run_json("run", batch, "--grad", self.path("link"))
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertIn("draft_hidden.grad", safetensors.read(self.path("old"))[0])

    def test_outputs_that_cannot_be_written_are_named_and_leave_nothing(self):
        batch = self.write()
        for option in ("--grad", "--rows"):
            for bad in (self.path("no/such/folder"), self.folder, "/dev/full", "/proc/none"):
                self.assert_refused(5, [bad], "run", batch, option, bad)
        both = ["--grad", self.path("good"), "--rows", "/dev/full"]
        self.assert_refused(5, ["/dev/full"], "run", batch, *both)
        same = ["--grad", self.path("x"), "--rows", self.path("x")]
        self.assert_refused(2, ["--rows", "--grad"], "run", batch, *same)
        self.assertEqual(os.listdir(self.folder), ["batch.safetensors"])

    def test_a_full_disk_leaves_the_old_file_and_nothing_new(self):
        batch = self.write()
        with open(self.path("out"), "w") as old:
            old.write("old")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))  # the header fits, the data don't
        for option in ("--grad", "--rows"):
            done = run("run", batch, option, self.path("out"), preexec_fn=limit)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn("out", done.stderr)
            self.assertEqual(sorted(os.listdir(self.folder)), ["batch.safetensors", "out"])
            with open(self.path("out")) as old:
                self.assertEqual(old.read(), "old")

    def test_results_that_cannot_be_printed_are_an_error_and_leave_no_file(self):
        batch = self.write()
        for options in ([], ["--json"]):
            for command_line in (["run", batch, "--grad", self.path("g"), *options],
                                 ["plan", "--rows", "32", "--hidden", "8", "--vocab", "19", *options],
                                 ["backends", *options], ["run", "--help"]):
                with open("/dev/full", "w") as full:
                    done = run(*command_line, capture_output=False, stdout=full,
                               stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 5, command_line)
                self.assertIn("No space left", done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
                read, write = os.pipe()
                os.close(read)
                done = run(*command_line, capture_output=False, stdout=write,
                           stderr=subprocess.PIPE)
                os.close(write)
                self.assertEqual(done.returncode, 5, command_line)
                done = run(*command_line, capture_output=False, stderr=subprocess.PIPE,
                           preexec_fn=lambda: os.close(1))
                self.assertEqual(done.returncode, 5, command_line)
        self.assertEqual(os.listdir(self.folder), ["batch.safetensors"])

    def test_an_interrupt_leaves_nothing_behind(self):
        big = self.write(tensors=small(rows=4096, vocab=4001, hidden=64))
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([ONEHEAD, "run", big, "--grad", self.path("g"), "--policy",
                                   "naive"], stdout=subprocess.PIPE) as process:
                deadline = time.monotonic() + 60
                while not any(name.endswith(".tmp") for name in os.listdir(self.folder)):
                    self.assertIsNone(process.poll())
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.001)
                process.send_signal(number)
                self.assertEqual(process.wait(60), 128 + number)
            self.assertEqual(os.listdir(self.folder), ["batch.safetensors"])

    def test_stderr_is_silent_when_it_is_no_terminal(self):
        self.assertEqual(run("run", self.write()).stderr, "")


class TestBackends(InFolder):
    def test_backends_are_listed_without_being_loaded(self):
        got = json.loads(run("backends", "--json").stdout)
        found = {entry["name"]: entry for entry in got["candidates"]}
        self.assertEqual(found["openblas"]["verdict"], "")
        self.assertEqual(got["backends"], [])
        self.assertIn("openblas", run("backends").stdout)

    def test_a_named_backend_tells_its_devices(self):
        got = json.loads(run("backends", "openblas", "--json").stdout)["backends"][0]
        self.assertEqual(got["name"], "openblas")
        self.assertIn("OpenBLAS", got["devices"][0]["kernel"])
        self.assertIn("host-memory", got["capabilities"])
        self.assertIn("f32", got["tiles"])
        table = run("backends", "--probe")
        self.assertEqual(table.returncode, 0)
        self.assertIn("OpenBLAS", table.stdout)

    def test_a_backend_whose_memory_is_elsewhere_gives_the_same_answers(self):
        far = ["--backend", os.environ["ONEHEAD_FAR"]]
        bias = np.linspace(-1, 1, 19).astype(np.float32)
        head = small(hidden=8, seed=9)["lm_head"]
        batch = self.write(bias=bias, target_lm_head=head, target_row=np.arange(32)[::-1].copy())
        files = {}
        for place, options in (("near", []), ("far", far)):
            grad, rows = self.path(place + ".grad"), self.path(place + ".rows")
            got = run_json("run", batch, *options, "--grad", grad, "--grad-head", "--rows", rows)
            files[place] = [got, safetensors.read(grad)[0], safetensors.read(rows)[0]]
        got, want = files["far"], files["near"]
        self.assertEqual(got[0]["backend"], "far")
        for key in ("backend", "seconds"):
            del got[0][key], want[0][key]
        self.assertEqual(got[0], want[0])
        for got_tensors, want_tensors in zip(got[1:], want[1:]):
            for name in want_tensors:
                self.assertEqual(got_tensors[name].tobytes(), want_tensors[name].tobytes(), name)
        done = run("check", batch, "--against", os.environ["ONEHEAD_FAR"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("backend far", done.stdout)

    def test_backends_and_devices_that_are_not_there_have_their_exit_code(self):
        batch = self.write()
        self.assert_refused(4, ["nothing"], "run", batch, "--backend", "nothing")
        self.assert_refused(4, ["/no/such.so"], "run", batch, "--backend", "/no/such.so")
        self.assert_refused(4, ["device", "7"], "run", batch, "--device", "7")
        self.assert_refused(4, ["nothing"], "backends", "nothing")
        self.assert_refused(4, ["nothing"], "check", batch, "--against", "nothing")


class TestPlan(InFolder):
    TRAINER = ["--rows", "32768", "--hidden", "5120", "--vocab", "248320", "--chunk", "2048",
               "--topk", "4,8"]

    def plan(self, *arguments):
        return json.loads(run("plan", *arguments, "--json").stdout)

    def test_projections_of_the_trainer_are_128_64_and_32_a_step(self):
        for memory in ([], ["--memory", "64G"]):
            policies = self.plan(*self.TRAINER, *memory)["policies"]
            self.assertEqual({k: v["projections"] for k, v in policies.items()},
                             {"naive": 128, "recompute": 64, "cached": 32})
            self.assertEqual({k: v["gemms"] for k, v in policies.items()},
                             {"naive": 144, "recompute": 80, "cached": 48})
            flops = 2 * 2048 * 5120 * 248320 * 15 / 16  # slot 0 of 16 is never supervised
            self.assertAlmostEqual(policies["cached"]["flops"] / (48 * flops), 1)
            for entry in policies.values():
                self.assertGreater(entry["workspace_bytes"], 0)

    def test_nodes_merge_into_one_projection_a_tensor(self):
        got = self.plan(*self.TRAINER, "--memory", "64G")
        ops = [node["op"] for node in got["nodes"]]
        self.assertEqual(ops.count("project_draft"), 1)
        self.assertEqual(ops.count("project_target"), 1)
        before = [node["op"] for node in got["nodes_before"]]
        self.assertGreater(before.count("project_draft"), 1)
        for node in got["nodes_before"]:
            self.assertEqual(got["nodes"][node["merged"]]["op"], node["op"])

    def test_plan_and_run_count_the_same(self):
        shape = ["--rows", "1536", "--target-rows", "1024", "--hidden", "256", "--vocab", "8003"]
        for policy in ("cached", "recompute", "naive"):
            planned = self.plan(*shape, "--policy", policy, "--chunk", "512")
            ran = run_json("run", "--policy", policy, "--chunk", "512")
            self.assertEqual(planned["projections"], ran["projections"])
            self.assertEqual(planned["gemms"], ran["gemms"])
            self.assertEqual(planned["policies"][policy]["projections"],
                             sum(ran["projections"].values()))

    def test_a_small_memory_means_panels(self):
        got = self.plan("--rows", "1536", "--hidden", "256", "--vocab", "8003", "--chunk", "1536",
                        "--policy", "recompute", "--memory", "16M")
        self.assertLess(got["panel"], 8003)
        self.assertLessEqual(got["workspace_bytes"] + got["weight_bytes"], 16 << 20)

    def test_tables_show_policies_nodes_and_buffers(self):
        text = run("plan", *self.TRAINER).stdout
        for part in ("naive", "128", "recompute", "64", "cached", "32", "project_draft",
                     "Before merging", "After merging", "Workspace"):
            self.assertIn(part, text)

    def test_dot_has_every_node_before_and_after_merging(self):
        dot = self.path("g.dot")
        got = self.plan(*self.TRAINER, "--memory", "64G", "--dot", dot)
        with open(dot) as out:
            text = out.read()
        for letter, nodes in (("b", got["nodes_before"]), ("a", got["nodes"])):
            for index, node in enumerate(nodes):
                self.assertRegex(text, rf'(?m)^ *{letter}{index} \[label="{node["op"]}')
                for source in node["inputs"]:
                    self.assertIn(f" {letter}{source} -> {letter}{index};", text)
        both = got["nodes_before"] + got["nodes"]
        self.assertEqual(text.count(" [label="), len(both))
        self.assertEqual(text.count("->"), sum(len(node["inputs"]) for node in both))
        # One node before merging stays for each after it.
        self.assertEqual(text.count("style=dashed"), len(got["nodes_before"]) - len(got["nodes"]))
        self.assertIn("6 in one, saves 24.41 TFLOP", text)
        if shutil.which("dot"):
            self.assertEqual(subprocess.run(["dot", "-Tsvg", dot], capture_output=True).returncode, 0)
        self.assert_refused(5, ["/dev/full"], "plan", *self.TRAINER, "--dot", "/dev/full")

    def test_shapes_without_meaning_are_refused(self):
        self.assert_refused(2, ["--rows"], "plan", "--hidden", "8", "--vocab", "9")
        self.assert_refused(2, ["--hidden"], "plan", "--rows", "16", "--vocab", "9")
        self.assert_refused(2, ["--vocab"], "plan", "--rows", "16", "--hidden", "8")
        self.assert_refused(2, ["--rows", "40", "16"], "plan", "--rows", "40", "--hidden", "8",
                            "--vocab", "9")
        self.assert_refused(2, ["kl"], "plan", "--rows", "16", "--hidden", "8", "--vocab", "9",
                            "--target-rows", "0", "--terms", "kl=1")
        done = run("plan", "--rows", "16", "--hidden", "8", "--vocab", "9", "--target-rows", "0")
        self.assertEqual(done.returncode, 0, done.stderr)


class TestCheck(InFolder):
    def test_policies_chunks_and_panels_agree_on_a_batch(self):
        batch = self.write(tensors=small(rows=96, vocab=900, hidden=16))
        done = run("check", batch, "--json", "--grad-head", "--against", "openblas")
        self.assertEqual(done.returncode, 0, done.stdout)
        got = json.loads(done.stdout)
        self.assertTrue(got["agrees"])
        text = " ".join(entry["run"] for entry in got["runs"])
        for part in ("cached", "recompute", "naive", "panels of", "backend openblas"):
            self.assertIn(part, text)
        names = {entry["name"] for entry in got["runs"][0]["figures"]}
        self.assertLessEqual({"loss", "terms.kl", "topk.4.hits", "slot_hits.3", "grad_norm",
                              "draft_hidden.grad", "lm_head.grad", "row_loss", "argmax"}, names)
        self.assertIn("all", run("check", batch).stdout)

    def test_golden_values_that_are_off_are_found_and_named(self):
        batch = self.write()
        good = {k: v for k, v in run_json("run", batch).items() if k in (
            "loss", "topk", "supervised", "grad_norm", "slot_hits")}
        golden = self.path("golden.json")

        def check(**changes):
            entry = {"args": "--decay exp:10", **good, **changes}
            with open(golden, "w") as out:
                json.dump({"batch.safetensors": {"first": entry}}, out)
            return run("check", batch, "--golden", golden)
        self.assertEqual(check().returncode, 0)
        for name, value in (("loss", good["loss"] * (1 + 2e-5)), ("supervised", 29),
                            ("grad_norm", good["grad_norm"] * (1 + 1e-4)),
                            ("slot_hits", [1] * 16)):
            done = check(**{name: value})
            self.assertEqual((done.returncode, done.stderr), (1, ""), name)
            self.assertRegex(done.stdout, rf"first +DIFFERS +{name}")
        self.assertEqual(check(loss=good["loss"] * (1 + 1e-6)).returncode, 0)

    def test_a_case_with_its_own_options_is_checked_under_them(self):
        for name in ("block_5", "nla_floor", "drafter_is_target_terms", "no_rows", "nan_row_dpace"):
            done = run("check", os.path.join(GOLDEN, "cases", name + ".safetensors"), "--golden",
                       os.path.join(GOLDEN, "cases.json"))
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_golden_files_without_meaning_are_bad_input(self):
        batch = self.write()
        golden = self.path("golden.json")
        for content, part in (("{", "golden.json"), ("[]", "batch.safetensors"),
                              ("{}", "batch.safetensors"),
                              ('{"batch.safetensors": {"s": {"loss": 1}}}', "args"),
                              ('{"batch.safetensors": {"s": {"args": "--walk"}}}', "--walk"),
                              ('{"batch.safetensors": {"s": {"args": ""}}}', "figure")):
            with open(golden, "w") as out:
                out.write(content)
            self.assert_refused(3, [part], "check", batch, "--golden", golden)
        self.assert_refused(3, ["/no/such"], "check", batch, "--golden", "/no/such")

    def test_the_built_in_sample_is_checked_against_its_golden_values(self):
        done = run("check", "--topk", "1,4")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name in SAMPLE_SETS:
            self.assertRegex(done.stdout, rf"(?m)^{name} +agrees")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
