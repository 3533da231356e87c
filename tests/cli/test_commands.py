"""Every command that the documentation shows is run: here, or by the test that is named below, or it says why not."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import numpy as np

from command import GOLDEN, ONEHEAD, run, safetensors

ROOT = os.path.dirname(GOLDEN)
FOLDERS = ("", "backends", "docs", "golden", "plugins", "tools/python")

# What stands at the beginning of a line that is meant to be typed.
PROGRAMS = {"onehead", "python3", "pip", "cmake", "ctest", "cp", "sed", "cd", "dot", "man", "export", "git"}

GUIDE = "newcomer"  # the test that types the author's guide
ELSEWHERE = {  # command: the test that runs it
    "onehead conform onednn": "conform_onednn",
    "python3 golden/generate.py --check": "golden_regenerated",
    "python3 golden/test_oracle.py": "golden_oracle",
    "pip install ./tools/python": "python",
}
LEFT_OUT = {  # command: why
    "tools/run": "installs packages; every CI run begins with it",
    "tools/test": "installs packages; it is what CI runs, this test included",
    "python3 golden/generate.py": "writes into the source tree; with --check it does the same elsewhere",
    "cmake -S plugins/onednn -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build":
        "needs libdnnl and an installation; the tree builds the same sources",
    "onehead conform build/onehead-onednn.so": "the same; conform_onednn judges what the tree built",
}


def documents():
    for folder in FOLDERS:
        for path, folders, names in os.walk(os.path.join(ROOT, folder)):
            folders[:] = [name for name in folders if folder and name not in ("tests", "build")]
            yield from (os.path.relpath(os.path.join(path, name), ROOT) for name in names if name.endswith(".md"))


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()


def commands_of(path):
    """Lines of blocks fenced as `sh`, and of indented blocks that begin with a program."""
    fence = None
    for line in lines_of(path):
        if line.startswith("```"):
            fence = None if fence is not None else line[3:]
            continue
        indented = fence is None and line.startswith("    ")
        first = line.split()[0] if line.split() else ""
        if fence == "sh" or (indented and (first in PROGRAMS or re.match(r"tools/\w", first))):
            text = re.sub(r"\s+#.*$", "", line).strip()
            if text and not text.startswith("#"):
                yield text


def shown():
    return [(path, text) for path in sorted(set(documents())) for text in commands_of(path)]


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        random = np.random.Generator(np.random.PCG64(5))
        batch = {"draft_hidden": random.standard_normal((32, 8), dtype=np.float32),
                 "target_hidden": random.standard_normal((20, 8), dtype=np.float32),
                 "target_row": random.integers(0, 20, 32), "loss_mask": np.ones(32, np.uint8)}
        head = {"lm_head": random.standard_normal((50, 8), dtype=np.float32)}
        safetensors.write(cls.path("batch.safetensors"), batch)
        safetensors.write(cls.path("head.safetensors"), head)
        os.makedirs(cls.path("path/to/checkpoint"))
        safetensors.write(cls.path("path/to/checkpoint/model.safetensors"), {"lm_head.weight": head["lm_head"]})
        os.mkdir(cls.path("dump"))
        for i in range(3):
            safetensors.write(cls.path(f"dump/{i}.safetensors"), batch)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def type(self, text):
        """Runs one line of the documentation, on the batch of this test and for less long."""
        words = shlex.split(text)
        if words[0] != "onehead":
            return subprocess.run(words, cwd=self.folder, text=True, capture_output=True, timeout=120)
        arguments = ["cpu-small" if word == "cpu" else word for word in words[1:]]
        if arguments[0] == "bench" or arguments == ["report"]:
            arguments += ["--repeats", "1"] if arguments[0] == "bench" else ["--seconds", "0"]
            arguments += [] if "--preset" in arguments else ["--preset", "cpu-small"]
        if arguments[0] == "run" and any("safetensors" in word for word in arguments) and "--lm-head" not in arguments:
            arguments += ["--lm-head", "head.safetensors"]
        return run(*arguments, cwd=self.folder, env=dict(os.environ, OMP_NUM_THREADS="1"))

    def wanted(self, text):
        """Whether this machine has what a command needs."""
        words = shlex.split(text)
        if words[:2] == ["onehead", "report"]:
            probe = ["/usr/bin/python3", "-c", "import importlib.util as u; exit(not u.find_spec('matplotlib'))"]
            return subprocess.run(probe).returncode == 0
        if "onednn" in words:
            return run("backends", "onednn").returncode == 0
        return words[0] == "onehead" or shutil.which(words[0]) is not None

    def test_every_command_is_run_or_says_why_not(self):
        known = {**ELSEWHERE, **LEFT_OUT}
        ran, seen = 0, set()
        for path, text in shown():
            if path == "plugins/README.md":
                continue  # below
            seen.add(text)
            if text in known:
                continue
            self.assertTrue(shlex.split(text)[0] in PROGRAMS, f"{path}: neither run nor listed: {text}")
            if not self.wanted(text):
                continue
            done = self.type(text)
            self.assertEqual(done.returncode, 0, f"{path}: {text}\n{done.stderr}")
            ran += 1
        self.assertGreaterEqual(ran, 12)
        self.assertEqual(set(known) - seen, set(), "listed here, and in no document")
        for name in ("grad.safetensors", "rows.safetensors", "trace.json", "bench.json", "plan.dot"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    def test_the_guide_for_authors_is_typed_by_its_own_test(self):
        self.assertEqual(lines_of("plugins/README.md").count("```sh"), 1)

    def test_tests_that_are_named_exist(self):
        text = "\n".join(lines_of("tests/CMakeLists.txt") + lines_of("tests/conform/CMakeLists.txt"))
        for name in [*ELSEWHERE.values(), GUIDE]:
            self.assertRegex(text, rf"onehead_test_command\({name}\b")


if __name__ == "__main__":
    unittest.main()
