"""What `plan` says of merging, of time and of its chunk."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ONEHEAD = os.environ["ONEHEAD"]
SHAPE = ["--rows", "4096", "--hidden", "512", "--vocab", "8192", "--chunk", "1024", "--topk", "4,8", "--metrics",
         "one-read"]


def run(*arguments):
    return subprocess.run([ONEHEAD, "plan", *map(str, arguments)], text=True, capture_output=True, timeout=60)


def plan(*arguments):
    done = run(*arguments, "--json")
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


class TestSavings(unittest.TestCase):
    def test_cached_saves_what_naive_would_have_run(self):
        got = plan(*SHAPE, "--policy", "cached", "--memory", "1G")
        savings, chunks = got["savings"], got["chunks"]
        self.assertEqual(savings["ops"]["project_draft"]["asked"] + savings["ops"]["project_target"]["asked"], 8)
        self.assertEqual(savings["ops"]["project_draft"]["kept"] + savings["ops"]["project_target"]["kept"], 2)
        self.assertEqual(set(savings["ops"]["project_draft"]["saved_for"]), {"loss", "metrics", "topk:4", "topk:8"})
        self.assertEqual(savings["flops_before"] * chunks, got["policies"]["naive"]["flops"])
        self.assertEqual((savings["flops_before"] - savings["flops"]) * chunks, got["flops"])

    def test_naive_saves_no_projection(self):
        self.assertNotIn("project_draft", plan(*SHAPE, "--policy", "naive", "--memory", "1G")["savings"]["ops"])


class TestPrediction(unittest.TestCase):
    def write(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
        self.addCleanup(os.remove, file.name)
        with file:
            file.write(text)
        return file.name

    def test_a_rate_predicts_the_products_time(self):
        for policy in plan(*SHAPE, "--rate", "100")["policies"].values():
            self.assertAlmostEqual(policy["predicted_seconds"], policy["flops"] / 100e9, delta=1e-12)

    def test_without_a_rate_nothing_is_predicted(self):
        for policy in plan(*SHAPE)["policies"].values():
            self.assertIsNone(policy["predicted_seconds"])
        self.assertNotIn("predicted", run(*SHAPE).stdout)

    def test_a_measurement_gives_rate_and_ratio(self):
        entries = [{"policy": "cached", "flops_per_second": 2e12, "ratio_to_gemms": ratio} for ratio in (1.5, 1.25, 2)]
        entries.append({"policy": "naive", "error_occurred": True})
        path = self.write(json.dumps({"benchmarks": entries}))
        policies = plan(*SHAPE, "--rate", path)["policies"]
        self.assertAlmostEqual(policies["cached"]["predicted_seconds"], policies["cached"]["flops"] / 2e12 * 1.5)
        self.assertAlmostEqual(policies["naive"]["predicted_seconds"], policies["naive"]["flops"] / 2e12)
        self.assertIn("predicted", run(*SHAPE, "--rate", path).stdout)

    def test_a_rate_that_is_none_is_refused(self):
        for text, code in (("0", 2), ("-3", 2), ("fast", 2), ("", 2), (self.write("{}"), 3), (self.write("[1"), 2)):
            done = run(*SHAPE, "--rate", text)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)


class TestPolicies(unittest.TestCase):
    def test_within_the_memory_each_has_the_chunk_that_it_allows(self):
        got = plan("--rows", "2048", "--hidden", "64", "--vocab", "20000", "--memory", "24M")
        free, within = got["policies"], got["within_memory"]
        for name in ("naive", "recompute", "cached"):
            self.assertEqual(free[name]["panel"], 20000)
        self.assertEqual(within["cached"]["panel"], 20000)
        self.assertLess(within["recompute"]["panel"], 20000)
        self.assertGreater(within["recompute"]["chunk"], within["cached"]["chunk"])
        for entry in within.values():
            self.assertLessEqual(entry["workspace_bytes"] + entry["weight_bytes"], 24 << 20)
        text = run("--rows", "2048", "--hidden", "64", "--vocab", "20000", "--memory", "24M").stdout
        self.assertIn("And within 24.00 MiB", text)
        self.assertIn("All of them fit in 1.00 GiB", run(*SHAPE, "--memory", "1G").stdout)

    def test_a_policy_that_does_not_fit_is_said_to(self):
        shape = ["--rows", "2048", "--hidden", "64", "--vocab", "20000", "--memory", "24M", "--chunk", "2048"]
        self.assertIsNone(plan(*shape)["within_memory"]["cached"])
        self.assertRegex(run(*shape).stdout, r"(?m)^cached +doesn't fit$")

    def test_the_backends_products_are_planned_with(self):
        self.assertGreater(plan(*SHAPE, "--memory", "1G")["weight_bytes"], 0)  # bf16 inputs, products in f32
        self.assertEqual(plan(*SHAPE, "--memory", "1G", "--dtype", "f32")["weight_bytes"], 0)
        far = os.environ["ONEHEAD_FAR"]
        self.assertEqual(plan(*SHAPE, "--backend", far)["workspace_bytes"], plan(*SHAPE)["workspace_bytes"])
        self.assertEqual(run(*SHAPE, "--backend", "nothing").returncode, 4)

    def test_without_a_shape_it_is_the_one_that_bench_measures(self):
        got = plan()
        self.assertEqual((got["rows"], got["hidden"], got["vocab"], got["chunk"]), (512, 1024, 50257, 256))

    def test_the_targets_transform_is_the_drafts_unless_given(self):
        for given in ([], ["--target-scale", "2"], ["--target-softcap", "0"]):
            self.assertEqual(run(*SHAPE, "--softcap", "30", *given).returncode, 0)


class TestLargest(unittest.TestCase):
    SHAPE = ["--rows", 2**31 - 16, "--hidden", 2**31 - 1, "--vocab", 2**31 - 1025, "--memory", f"{2**33 - 1}G"]

    def test_sizes_that_63_bits_do_not_hold_are_said_to_be_large_and_not_negative(self):
        with tempfile.TemporaryDirectory() as folder:
            dot = os.path.join(folder, "dot")
            done = run(*self.SHAPE, "--dot", dot)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(dot) as file:
                text = done.stdout + file.read()
        self.assertNotRegex(text, r"-\d[\d.]* [KMGTPE]?i?B\b")
        self.assertRegex(text, r"(?m)^cached .* >= 8 EiB$")

    def test_the_next_larger_chunk_is_larger(self):
        """Converted weights of 2^62 bytes beside tiles of 2^61, and of twice as many for the larger chunk."""
        shape = [*self.SHAPE, "--hidden", 2**29, "--policy", "cached", "--chunk", 2**27]
        got = plan(*shape)
        self.assertGreater(got["weight_bytes"], 2**61)
        self.assertEqual(got["larger_chunk_bytes"], 2**63 - 1)
        self.assertRegex(run(*shape).stdout, r"(?m)^chunk .* 268,435,456 would take >= 8 EiB, the memory is 8.00 EiB$")


class TestChunk(unittest.TestCase):
    def test_the_next_chunk_does_not_fit_the_budget_that_chose_this_one(self):
        shape = ["--rows", "8192", "--hidden", "256", "--vocab", "20000", "--memory", "100M", "--policy", "cached"]
        got = plan(*shape)
        self.assertGreater(got["chunks"], 1)
        self.assertEqual(got["larger_chunk"], 2 * got["chunk"])
        self.assertGreater(got["larger_chunk_bytes"], 100 << 20)
        self.assertRegex(run(*shape).stdout, r"(?m)^chunk .* would take .* MiB, the memory is 100.00 MiB$")

    def test_one_chunk_has_no_larger_one(self):
        got = plan("--rows", "64", "--hidden", "16", "--vocab", "500")
        self.assertEqual((got["chunks"], got["larger_chunk"]), (1, 0))
        self.assertIn("the whole step fits", run("--rows", "64", "--hidden", "16", "--vocab", "500").stdout)

    def test_a_chunk_that_could_be_larger_says_so(self):
        text = run("--rows", "8192", "--hidden", "16", "--vocab", "500").stdout
        self.assertRegex(text, r"(?m)^chunk +2,048 rows, 4 a step: 4,096 would fit")


class TestTile(unittest.TestCase):
    def test_the_tile_comes_with_its_reason(self):
        shape = ["--rows", "64", "--hidden", "16", "--vocab", "500"]
        got = plan(*shape)
        self.assertEqual((got["tile"], got["tile_reason"], got["grad_dtype"]), ("f32", "the default on a CPU", "f32"))
        self.assertEqual(plan(*shape, "--backend", "openblas")["tile_reason"], "the default on a CPU")
        self.assertEqual(plan(*shape, "--tile", "diff")["tile_reason"], "as asked")
        self.assertIn("tile        f32: the default on a CPU\n", run(*shape).stdout)

    def test_a_backend_that_is_not_there_is_said(self):
        done = run("--rows", "64", "--hidden", "16", "--vocab", "500", "--backend", "nowhere")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (4, 1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
