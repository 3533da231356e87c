"""What the command writes appears whole or not at all: a full disk, a closed pipe, a folder that can't be written, a
signal. Every output is held to the same rules: exit code 5, one line that names the file, the old file as it was, no
temporary file, and none of the other outputs of the same command."""

import os
import resource
import signal
import subprocess
import sys
import time
import unittest

import test_cli
from command import ONEHEAD, run

SHAPE = ["--rows", "32", "--hidden", "8", "--vocab", "19"]
PLAN = ["plan", *SHAPE]
BENCH = ["bench", *SHAPE, "--policy", "cached", "--threads", "1", "--repeats", "1"]


class TestOutputs(test_cli.InFolder):
    def setUp(self):
        super().setUp()
        self.batch = self.write()
        self.again = self.write("again.safetensors")
        run_one = ["run", self.batch]
        # Option, the command it belongs to, another output of the same command.
        self.outputs = [
            ("--grad", run_one, "--rows"),
            ("--rows", run_one, "--trace"),
            ("--trace", run_one, "--grad"),
            ("--resume", ["run", self.batch, self.again], None),
            ("--dot", PLAN, None),
            ("--out", BENCH, "--trace"),
            ("--trace", BENCH, "--out"),
        ]

    def files(self):
        return sorted(set(os.listdir(self.folder)) - {"batch.safetensors", "again.safetensors"})

    def assert_failed(self, done, name, *left):
        self.assertEqual((done.returncode, done.stdout), (5, ""), done.args)
        self.assertRegex(done.stderr, rf"\Aonehead: [a-z]+: .*{name}.*\n\Z")
        self.assertEqual(self.files(), sorted(left), done.args)
        for file in left:
            with open(self.path(file)) as old:
                self.assertEqual(old.read(), "old", done.args)

    def old(self, name):
        with open(self.path(name), "w") as file:
            file.write("old")
        return self.path(name)

    def test_names_that_cannot_be_written_are_told(self):
        inside_a_file = os.path.join(self.batch, "out")
        for option, command_line, other in self.outputs:
            more = [other, self.old("other")] if other else []
            left = ["other"] if other else []
            for bad in (self.path("no/folder/out"), self.folder, inside_a_file, "/proc/none/out", "/proc/out"):
                if option == "--resume" and bad in (self.folder, inside_a_file):
                    continue  # what it can't continue from is bad input
                self.assert_failed(run(*command_line, option, bad, *more), bad, *left)
            if os.path.exists(self.path("other")):
                os.remove(self.path("other"))

    def test_a_name_that_bench_cannot_write_is_told_before_it_measures(self):
        start = time.monotonic()
        for option in ("--out", "--trace"):
            self.assert_failed(run("bench", "--preset", "cpu", "--seconds", "60", option, self.path("no/out")), "no/out")
        self.assertLess(time.monotonic() - start, 30)

    def test_a_full_device_is_told(self):
        for option, command_line, other in self.outputs:
            if option == "--resume":
                continue  # it is read first
            more = [other, self.old("other")] if other else []
            self.assert_failed(run(*command_line, option, "/dev/full", *more), "/dev/full", *(["other"] if other else []))
            if other:
                os.remove(self.path("other"))

    def test_a_full_disk_leaves_the_old_files(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))  # some of each file fits
        for option, command_line, other in self.outputs:
            more = [other, self.old("other")] if other else []
            old = [] if option == "--resume" else ["out"]
            if old:
                self.old("out")
            done = run(*command_line, option, self.path("out"), *more, preexec_fn=limit)
            self.assert_failed(done, "(out|other)", *old, *(["other"] if other else []))
            for name in self.files():
                os.remove(self.path(name))

    def test_a_checkpoint_that_can_no_longer_be_written_stays_as_it_was(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
        state = self.path("state")
        one = ["run", self.batch, "--resume", state, "--json"]
        self.assertEqual(run(*one).returncode, 0)
        with open(state, "rb") as file:
            before = file.read()
        done = run(*one, preexec_fn=limit)
        self.assertEqual((done.returncode, done.stdout), (5, ""), done.stderr)
        self.assertIn(state, done.stderr)
        with open(state, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(self.files(), ["state"])

    def test_results_that_nobody_reads_leave_the_old_files(self):
        """A closed pipe: `| head` that has ended. The signal is ignored, so the write's error is told."""
        for option, command_line, other in self.outputs:
            if option == "--resume":
                continue  # a pass's sums stay, whether or not they could be printed
            more = [other, self.old("other")] if other else []
            for form in ([], ["--json"]):
                read, write = os.pipe()
                os.close(read)
                done = run(*command_line, option, self.old("out"), *more, *form, capture_output=False, stdout=write,
                           stderr=subprocess.PIPE)
                os.close(write)
                done.stdout = ""
                self.assert_failed(done, "standard output", "out", *(["other"] if other else []))
            for name in self.files():
                os.remove(self.path(name))

    def test_an_output_is_no_input_and_no_other_output(self):
        with open(self.batch, "rb") as file:
            bytes_before = file.read()
        os.symlink(self.batch, self.path("link"))
        os.mkdir(self.path("checkpoint"))
        in_checkpoint = self.path("checkpoint/model.safetensors")
        with open(self.batch, "rb") as source, open(in_checkpoint, "wb") as to:
            to.write(source.read())
        dotted = os.path.join(self.folder, ".", "same")
        run_one = ["run", self.batch]
        for command_line, subject, other in (
            ([*run_one, "--grad", self.batch], "--grad", "an input"),
            ([*run_one, "--rows", self.path("link")], "--rows", "an input"),
            ([*run_one, "--trace", os.path.join(self.folder, ".", "batch.safetensors")], "--trace", "an input"),
            ([*run_one, "--lm-head", self.again, "--grad", self.again], "--grad", "a file of --lm-head"),
            ([*run_one, "--lm-head", self.again + ":lm_head", "--grad", self.again], "--grad", "a file of --lm-head"),
            ([*run_one, "--lm-head", self.path("checkpoint"), "--rows", in_checkpoint], "--rows", "a file of --lm-head"),
            ([*run_one, "--grad", self.path("same"), "--trace", dotted], "--trace", "--grad's"),
            ([*BENCH, "--out", dotted, "--trace", self.path("same")], "--out", "--trace's"),
            (["report", self.batch, "--out", self.path("link")], "--out", "an input"),
        ):
            done = run(*command_line)
            self.assertEqual((done.returncode, done.stdout), (2, ""), (command_line, done.stderr))
            self.assertRegex(done.stderr, rf"\Aonehead: [a-z]+: {subject}: '.*' is also {other}\n\Z")
        for path in (self.batch, in_checkpoint):
            with open(path, "rb") as file:
                self.assertEqual(file.read(), bytes_before)
        self.assertEqual(run(*run_one, "--json", "--trace", "/dev/null", "--grad", self.path("new")).returncode, 0)

    def test_outputs_of_one_command_appear_together(self):
        outputs = ["--grad", self.old("grad"), "--rows", self.old("rows"), "--trace", self.old("trace")]
        self.assertEqual(run("run", self.batch, *outputs).returncode, 0)
        self.assertEqual(self.files(), ["grad", "rows", "trace"])
        for name in self.files():
            self.assertGreater(os.path.getsize(self.path(name)), 100)

    def interrupt(self, number, *arguments, left=()):
        """Sends a signal once the command has its temporary files."""
        with subprocess.Popen([ONEHEAD, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            while not any(name.endswith(".tmp") for name in os.listdir(self.folder)):
                self.assertIsNone(process.poll(), arguments)
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)
            process.send_signal(number)
            self.assertEqual(process.wait(60), 128 + number)
        self.assertEqual(self.files(), sorted(left))
        for name in left:
            with open(self.path(name)) as old:
                self.assertEqual(old.read(), "old")

    def test_a_signal_leaves_the_old_files(self):
        big = self.write(tensors=test_cli.small(rows=2048, vocab=4001, hidden=64))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            files = ["--grad", self.old("grad"), "--rows", self.old("rows"), "--trace", self.old("trace")]
            self.interrupt(number, "run", big, "--policy", "naive", *files, left=("grad", "rows", "trace"))
            for name in self.files():
                os.remove(self.path(name))
            files = ["--out", self.old("out"), "--trace", self.old("trace")]
            self.interrupt(number, "bench", "--preset", "cpu-small", *files, left=("out", "trace"))
            for name in self.files():
                os.remove(self.path(name))

    def test_a_signal_in_a_pass_without_a_checkpoint_ends_it(self):
        for i in range(200):
            os.link(self.batch, self.path(f"batch{i}.safetensors"))
        process = subprocess.Popen([ONEHEAD, "run", self.folder, "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (128 + signal.SIGTERM, -signal.SIGTERM))  # before it had set its handler


class TestCandidates(test_cli.InFolder):
    def test_backends_says_of_each_candidate_why_it_is_not_taken(self):
        """The rules are test_loader's; here, that what they say is shown."""
        os.chmod(self.folder, 0o755)
        for name in ("text", "writable", "first"):
            with open(self.path(f"onehead-{name}.so"), "w") as file:
                file.write("no ELF file")
            os.chmod(self.path(f"onehead-{name}.so"), 0o622 if name == "writable" else 0o644)
        os.mkfifo(self.path("onehead-fifo.so"))
        os.symlink(self.path("nowhere"), self.path("onehead-dangling.so"))
        self.write("onehead-Name.so")
        env = dict(os.environ, ONEHEAD_BACKEND_PATH=f"{self.folder}:relative")
        table, probed = run("backends", env=env), run("backends", "--probe", env=env)
        for done in (table, probed):
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name, reason in (("writable", "writable by group and others"), ("fifo", "is a fifo"),
                                 ("dangling", "can't resolve"), ("Name", "wanted onehead-<name>.so"),
                                 ("relative", "not absolute")):
                self.assertRegex(done.stdout, rf"(?s){name}.*{reason}")
        self.assertRegex(probed.stdout, r"(?s)text.*is not an ELF file")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
