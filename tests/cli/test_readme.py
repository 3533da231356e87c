"""What the README says to type: its C program compiles and runs, its batch is one, its commands are taken."""
import os
import re
import shlex
import subprocess
import tempfile
import unittest

import numpy as np

from command import GOLDEN, ONEHEAD, run, safetensors

ROOT = os.path.dirname(GOLDEN)
LIBRARY = os.environ["ONEHEAD_LIBRARY"]

MAIN = """
#include <stdlib.h>
int main(void) {
    enum { ROWS = 32, HIDDEN = 8, VOCAB = 40 };
    unsigned short draft[ROWS * HIDDEN], head[VOCAB * HIDDEN];
    float gradient[ROWS * HIDDEN];
    for (int i = 0; i < ROWS * HIDDEN; ++i) draft[i] = (unsigned short)(0x3f00 + i % 97);
    for (int i = 0; i < VOCAB * HIDDEN; ++i) head[i] = (unsigned short)(0x3e00 + i * 7 % 89);
    return step(draft, draft, head, ROWS, HIDDEN, VOCAB, gradient) ? 0 : 1;
}
"""


class Readme(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            self.blocks = re.findall(r"^```(\w+)\n(.*?)^```$", file.read(), re.M | re.S)

    def test_the_c_example_compiles_without_a_warning_and_runs(self):
        (example,) = [text for language, text in self.blocks if language == "c"]
        source, program = os.path.join(self.folder, "step.c"), os.path.join(self.folder, "step")
        with open(source, "w", encoding="utf-8") as file:
            file.write(example + MAIN)
        subprocess.run(["cc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-I", os.path.join(ROOT, "core", "include"), source,
                        "-o", program, LIBRARY, "-Wl,-rpath," + os.path.dirname(LIBRARY), "-lm"], check=True)
        done = subprocess.run([program], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        # A drafter that is the target: nothing to lose, every token accepted.
        self.assertRegex(done.stdout, r"^loss -?\d.*, accepted 15 tokens a block$")

    def test_the_commands_are_taken(self):
        random = np.random.Generator(np.random.PCG64(5))
        tensors = {"draft_hidden": random.standard_normal((32, 8), dtype=np.float32),
                   "target_hidden": random.standard_normal((20, 8), dtype=np.float32),
                   "target_row": random.integers(0, 20, 32), "loss_mask": np.ones(32, np.uint8)}
        safetensors.write(os.path.join(self.folder, "batch.safetensors"), tensors)
        safetensors.write(os.path.join(self.folder, "head.safetensors"),
                          {"lm_head": random.standard_normal((50, 8), dtype=np.float32)})
        taken = 0
        for language, text in self.blocks:
            for line in text.splitlines() if language == "sh" else []:
                words = shlex.split(line, comments=True)
                if not words or words[0] != "onehead" or words[1] in ("bench", "report"):
                    continue  # a benchmark of minutes; test_bench and test_report run these
                words = ["head.safetensors" if word == "path/to/checkpoint" else word for word in words]
                if "--lm-head" not in words and "batch.safetensors" in words:
                    words += ["--lm-head", "head.safetensors"]
                done = run(*words[1:], cwd=self.folder)
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
                taken += 1
        self.assertGreaterEqual(taken, 5)
        for name in ("grad.safetensors", "rows.safetensors", "trace.json"):
            self.assertTrue(os.path.exists(os.path.join(self.folder, name)))


if __name__ == "__main__":
    unittest.main()
