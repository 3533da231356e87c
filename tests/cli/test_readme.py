"""The README's C program compiles and runs."""
import os
import re
import subprocess
import tempfile
import unittest

from command import GOLDEN

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
    return step(draft, draft, head, ROWS, HIDDEN, VOCAB, gradient);
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


if __name__ == "__main__":
    unittest.main()
