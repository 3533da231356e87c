"""What `bench` and --trace say: counts, shapes and consistency, never how long anything took."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ONEHEAD = os.environ["ONEHEAD"]
SHAPE = ["--rows", "64", "--hidden", "32", "--vocab", "512", "--chunk", "32", "--threads", "1", "--repeats", "2"]


def run(*arguments, **more):
    return subprocess.run([ONEHEAD, *map(str, arguments)], text=True, capture_output=True, timeout=120, **more)


def bench(*arguments):
    done = run("bench", *SHAPE, *arguments, "--json")
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


class TestBench(unittest.TestCase):
    def test_the_json_is_google_benchmarks_with_designs_keys(self):
        got = bench()
        for key in ("date", "num_cpus", "library_build_type", "commit", "kernel", "device", "threads", "seed", "cpu",
                    "copy_bytes_per_second", "peak_memory_bytes", "load_avg", "terms", "metrics", "topk"):
            self.assertIn(key, got["context"])
        self.assertEqual([b["policy"] for b in got["benchmarks"]], ["cached", "recompute", "naive"])
        for b in got["benchmarks"]:
            for key in ("name", "run_name", "run_type", "real_time", "cpu_time", "time_unit", "backend", "tile", "rows",
                        "hidden", "vocab", "chunk", "step_ms", "gemms_ms", "ratio_to_gemms", "workspace_bytes"):
                self.assertIn(key, b)
            self.assertEqual(b["iterations"], 2)
            self.assertEqual((b["rows"], b["hidden"], b["vocab"], b["chunk"]), (64, 32, 512, 32))
            self.assertGreater(b["step_ms"], 0)
            self.assertGreater(b["gemms_ms"], 0)

    def test_counts_are_the_plans(self):
        """Two chunks of 30 supervised rows; KL, metrics, top-4 and top-8 on their own: 2 + 2 + 2 + 1 + 1 a chunk."""
        got = {b["policy"]: b for b in bench("--topk", "4,8")["benchmarks"]}
        for policy, draft, target, gemms in (("cached", 2, 2, 6), ("recompute", 4, 4, 10), ("naive", 10, 6, 18)):
            self.assertEqual(got[policy]["projections"], {"draft": draft, "target": target}, policy)
            self.assertEqual(got[policy]["gemms"], gemms)
            self.assertEqual(got[policy]["flops"], gemms * 2 * 30 * 32 * 512)

    def test_passes_are_the_steps_operations(self):
        for b in bench("--policy", "cached")["benchmarks"]:
            passes = {p["name"]: p for p in b["passes"]}
            self.assertEqual(passes["project_draft"]["calls"], 2)
            self.assertEqual(passes["statistics"]["calls"], 2)
            self.assertEqual(passes["statistics"]["bytes"], 2 * 2 * 30 * 512 * 4)
            self.assertEqual(sum(p["flops"] for p in b["passes"]), b["flops"])
            self.assertTrue(passes["grad"]["product"])
            self.assertFalse(passes["tile_grad"]["product"])

    def test_a_case_that_cannot_be_planned_is_told_and_the_others_are_measured(self):
        got = bench("--policy", "cached,recompute", "--memory", "70K", "--chunk", "32")
        first, second = got["benchmarks"]
        self.assertTrue(first["error_occurred"])
        self.assertIn("budget", first["error_message"])
        self.assertGreater(second["step_ms"], 0)

    def test_where_nothing_can_be_planned_the_command_fails(self):
        done = run("bench", *SHAPE, "--policy", "cached", "--memory", "10K")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^onehead: bench: .*budget of 10240 bytes.*\n$")

    def test_a_series_varies_one_size(self):
        for series, values in (("rows", [16, 32, 64]), ("vocab", [64, 128, 256, 512]), ("chunk", [16, 32]),
                               ("threads", [1])):
            got = bench("--policy", "cached", "--series", series)["benchmarks"]
            self.assertEqual([b[series] for b in got], values)
            self.assertEqual({b["series"] for b in got}, {series})

    def test_formats_are_compared_with_f32(self):
        got = {b["tile"]: b for b in bench("--policy", "cached", "--tile", "f32,bf16,f16,diff")["benchmarks"]}
        self.assertEqual(got["f32"]["grad_error"], 0)
        # The drafter is a good one, so two 16-bit softmaxes cancel: each step of precision shows.
        self.assertGreater(got["bf16"]["grad_error"], got["f16"]["grad_error"])
        self.assertGreater(got["f16"]["grad_error"], got["diff"]["grad_error"])
        self.assertGreater(got["diff"]["grad_error"], 0)
        self.assertIsNone(bench("--policy", "cached")["benchmarks"][0]["grad_error"])

    def test_the_targets_logits_are_scaled_as_the_drafts_unless_told_otherwise(self):
        def error(*options):
            got = bench("--policy", "cached", "--tile", "f32,bf16", *options)["benchmarks"]
            return next(b["grad_error"] for b in got if b["tile"] == "bf16")
        self.assertEqual(error("--scale", "2"), error("--scale", "2", "--target-scale", "2"))
        self.assertNotEqual(error("--softcap", "3"), error("--softcap", "3", "--target-softcap", "0"))

    def test_fewer_target_rows_than_rows_are_shared(self):
        got = bench("--policy", "cached", "--target-rows", "16")["benchmarks"][0]
        passes = {p["name"]: p for p in got["passes"]}
        self.assertLess(passes["project_target"]["flops"], passes["project_draft"]["flops"])

    def traced_far_away(self, events):
        """A result and its trace on a device with memory, and with "1" a clock, of its own."""
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            done = run("bench", *SHAPE, "--policy", "cached", "--backend", os.environ["ONEHEAD_FAR"], "--trace", trace,
                       "--json", env=dict(os.environ, ONEHEAD_FAR_EVENTS=events))
            self.assertEqual(done.returncode, 0, done.stderr)
            got = json.loads(done.stdout)
            self.assertGreater(got["context"]["copy_bytes_per_second"], 0)  # by the device itself
            with open(trace) as file:
                return got["benchmarks"][0], json.load(file)

    def test_a_device_with_memory_of_its_own_has_times_of_its_own(self):
        for events, clock in (("1", "events"), ("0", "waits")):
            got, trace = self.traced_far_away(events)
            self.assertEqual((got["gemms"], got["pass_clock"]), (6, clock))
            self.assertEqual(trace["otherData"]["device_clock"], {"cached, f32 tiles": clock})
            enqueued = [e for e in trace["traceEvents"] if e.get("cat") == "enqueue"]
            operations = [e for e in trace["traceEvents"] if e.get("cat") == "operation"]
            self.assertEqual([e["name"] for e in enqueued], [e["name"] for e in operations])
            self.assertEqual({e["pid"] for e in enqueued} & {e["pid"] for e in operations}, set())
            # This device works while it is called. Its clock starts elsewhere, and is moved onto the host's to within
            # the time that it takes to tell of the origin: what another process can hold that up for, at the most.
            late = 1e5
            for call, operation in zip(enqueued, operations):
                self.assertGreaterEqual(operation["dur"], 0)
                self.assertAlmostEqual(operation["ts"], call["ts"], delta=late)
                self.assertAlmostEqual(operation["ts"] + operation["dur"], call["ts"] + call["dur"], delta=late)
            for before, after in zip(operations, operations[1:]):
                self.assertGreaterEqual(after["ts"] + 1e-3, before["ts"] + before["dur"])

    def test_passes_of_the_host_are_timed_by_its_calls(self):
        self.assertEqual(bench("--policy", "cached")["benchmarks"][0]["pass_clock"], "host")

    def test_unknown_names_are_refused(self):
        for arguments, expected in ((["--policy", "lazy"], "cached, recompute, naive"),
                                    (["--policy", "cached,"], "cached, recompute, naive"),
                                    (["--tile", "f64"], "auto, f32, bf16, f16, diff"),
                                    (["--series", "hidden"], "rows, vocab, chunk or threads"),
                                    (["--preset", "gpt-5"], "qwen3-8b")):
            done = run("bench", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(expected, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_table_names_policies_operations_and_the_limit(self):
        done = run("bench", *SHAPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("machine", "copy", "cached", "recompute", "naive", "project_draft", "tile_grad", "limit"):
            self.assertIn(word, done.stdout)

    def test_a_preset_is_a_shape_and_what_is_given_goes_first(self):
        done = run("plan", "--preset", "qwen3.6-27b", "--json")
        got = json.loads(done.stdout)
        self.assertEqual((got["rows"], got["hidden"], got["vocab"], got["chunk"]), (32768, 5120, 248320, 2048))
        done = run("plan", "--preset", "qwen3.6-27b", "--rows", "4096", "--memory", "2G", "--json")
        got = json.loads(done.stdout)
        self.assertEqual((got["rows"], got["hidden"]), (4096, 5120))
        self.assertLessEqual(got["workspace_bytes"], 2 << 30)


class TestOutputs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def events(self, path):
        with open(path) as file:
            trace = json.load(file)
        return trace, trace["traceEvents"]

    def check_trace(self, path, gemms, lanes):
        trace, events = self.events(path)
        self.assertEqual({e["ph"] for e in events}, {"M", "X", "C"})
        names = {e["args"]["name"] for e in events if e["ph"] == "M"}
        self.assertTrue({"host", "device"} <= names)
        operations = [e for e in events if e["ph"] == "X" and e["cat"] == "operation"]
        self.assertEqual(len({e["tid"] for e in operations}), lanes)
        products = [e for e in operations if e["args"]["flops"] > 0]
        self.assertEqual(len(products), gemms)
        for e in operations:
            self.assertGreaterEqual(e["dur"], 0)
            self.assertTrue({"chunk", "rows", "bytes", "flops"} <= set(e["args"]))
        self.assertEqual(trace["otherData"]["tile_reads"], [e for e in events if e["ph"] == "C"][-1]["args"]["reads"])
        return operations

    def test_benchs_trace_has_a_lane_a_case(self):
        path = self.path("trace.json")
        done = run("bench", *SHAPE, "--policy", "cached,naive", "--trace", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_trace(path, 6 + 18, 2)
        self.assertEqual(os.listdir(self.folder.name), ["trace.json"])

    def test_runs_trace_has_its_phases_and_operations(self):
        path = self.path("trace.json")
        done = run("run", "--threads", "1", "--trace", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        operations = self.check_trace(path, json.loads(done.stdout)["gemms"], 1)
        self.assertIn("gather_draft", {e["name"] for e in operations})
        _, events = self.events(path)
        phases = {e["name"]: e for e in events if e["ph"] == "X" and e["cat"] == "phase"}
        self.assertTrue({"read", "open", "step"} <= set(phases))
        step = phases["step"]
        for e in operations:
            self.assertGreaterEqual(e["ts"] + 1, step["ts"])
            self.assertLessEqual(e["ts"] + e["dur"], step["ts"] + step["dur"] + 1)

    def test_out_is_the_json_of_the_same_measurement(self):
        path = self.path("bench.json")
        done = run("bench", *SHAPE, "--out", path, "--json")
        with open(path) as file:
            self.assertEqual(json.load(file)["benchmarks"], json.loads(done.stdout)["benchmarks"])

    def test_an_output_that_cannot_be_written_leaves_nothing(self):
        for option in ("--trace", "--out"):
            done = run("bench", *SHAPE, option, self.path("missing/file.json"))
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        done = run("bench", "--rows", "17", "--hidden", "8", "--vocab", "8", "--trace", self.path("t.json"))
        self.assertEqual(done.returncode, 2)
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
