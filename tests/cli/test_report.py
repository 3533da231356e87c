"""`report`: one HTML file that needs nothing else."""

import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

ONEHEAD = os.environ["ONEHEAD"]
SHAPE = ["--rows", "64", "--hidden", "32", "--vocab", "512", "--chunk", "32", "--threads", "1", "--repeats", "2"]


def run(*arguments, **more):
    return subprocess.run([ONEHEAD, *map(str, arguments)], text=True, capture_output=True, timeout=120, **more)


class TestReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.bench, cls.series = cls.path("before & after.json"), cls.path("series.json")
        for path, more in ((cls.bench, ["--tile", "f32,bf16"]), (cls.series, ["--series", "rows"])):
            done = run("bench", *SHAPE, *more, "--out", path)
            assert done.returncode == 0, done.stderr

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def report(self, *inputs):
        out = self.path("out.html")
        done = run("report", *inputs, "--out", out)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        with open(out, encoding="utf-8") as file:
            return file.read()

    def test_a_report_is_whole_without_a_network(self):
        page = self.report(self.bench)
        self.assertNotRegex(page, r"<script|<link|<img|@import|url\((?!#)")
        for address in re.findall(r"""(?:href|src)=["']([^"']*)""", page):
            self.assertTrue(address.startswith("#"), address)
        for title in ("A step by policy", "Time by operation", "Memory by chunk size", "Accuracy by tile format"):
            self.assertIn(f"<h2>{title}</h2>", page)

    def test_without_a_file_it_measures_first(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("report", "--preset", "cpu-small", "--seconds", "0", cwd=folder,
                       env=dict(os.environ, OMP_NUM_THREADS="1"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("limit ", done.stdout)
            self.assertTrue(done.stdout.endswith("\nonehead-report.html\n"))
            self.assertEqual(sorted(os.listdir(folder)), ["onehead-bench.json", "onehead-report.html"])
            with open(os.path.join(folder, "onehead-bench.json")) as file:
                self.assertEqual(json.load(file)["context"]["preset"], "cpu-small")
            refused = run("report", "--preset", "none-such", cwd=folder)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""))

    def test_its_plots_are_svg_with_ids_of_their_own(self):
        page = self.report(self.bench, self.series)
        plots = re.findall(r"<svg.*?</svg>", page, re.S)
        self.assertEqual(len(plots), 5)
        seen = set()
        for plot in plots:
            xml.etree.ElementTree.fromstring(plot)
            clips = set(re.findall(r'<clipPath id="([^"]*)"', plot))
            self.assertFalse(clips & seen)
            seen |= clips
            for used in re.findall(r"url\(#([^)]*)\)", plot):
                self.assertIn(used, clips)

    def test_its_table_holds_the_measurements(self):
        page = self.report(self.bench)
        with open(self.bench) as file:
            benchmarks = json.load(file)["benchmarks"]
        for b in benchmarks:
            self.assertIn(f"<td>{b['ratio_to_gemms']:.3f} ×</td>", page)
        self.assertIn("before &amp; after", page)

    def test_text_of_a_file_is_text_of_the_page(self):
        with open(self.bench) as file:
            data = json.load(file)
        data["context"]["cpu"] = "<script>alert(1)</script>"
        data["benchmarks"][0].update(error_occurred=True, error_message="<b>no</b>")
        path = self.path("odd.json")
        with open(path, "w") as file:
            json.dump(data, file)
        page = self.report(path)
        self.assertNotIn("<script>", page)
        self.assertNotIn("<b>no</b>", page)
        self.assertIn("&lt;script&gt;", page)

    def test_bad_input_is_one_line_and_leaves_no_file(self):
        empty, other = self.path("empty.json"), self.path("other.json")
        with open(empty, "w") as file:
            file.write('{"context": {}, "benchmarks": []}')
        with open(other, "w") as file:
            file.write('{"benchmarks": [{"name": "x"}]}')
        out = self.path("none.html")
        for path, expected in ((empty, "no measurement"), (other, "no 'policy'"), (self.path("missing.json"), "No such"),
                               (ONEHEAD, "JSON")):
            done = run("report", path, "--out", out)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(done.stderr, rf"\Aonehead: report: .*{expected}.*\n\Z")
            self.assertFalse(os.path.exists(out))

    def test_an_output_that_cannot_be_written_is_told(self):
        for out in (self.path("missing/out.html"), "/dev/full", "/proc/out.html", os.path.join(self.bench, "out.html")):
            done = run("report", self.bench, "--out", out)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertIn(out, done.stderr)

    def test_what_stops_it_leaves_the_old_file(self):
        out = self.path("old.html")
        with open(out, "w") as file:
            file.write("old")
        before = sorted(os.listdir(self.folder.name))
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4000, 4000))
        done = run("report", self.bench, "--out", out, preexec_fn=limit)
        self.assertEqual(done.returncode, 5, done.stderr)
        for number, delay in ((signal.SIGINT, 0.5), (signal.SIGTERM, 0.1)):
            with subprocess.Popen([ONEHEAD, "report", self.bench, "--out", out], stderr=subprocess.PIPE) as process:
                time.sleep(delay)
                process.send_signal(number)
                process.wait(60)
            # Before the script has its handlers it is the interpreter that ends, in a way of its own.
            self.assertNotEqual(process.returncode, 0)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        with open(out) as file:
            self.assertEqual(file.read(), "old")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
