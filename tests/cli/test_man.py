"""The manual pages say what --help says, and read without a warning."""

import os
import re
import shutil
import subprocess
import unittest

ONEHEAD = os.environ["ONEHEAD"]
PAGES = os.environ["ONEHEAD_MAN"]


def text_of(*arguments):
    return subprocess.run([ONEHEAD, *arguments, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def page_of(command):
    name = "onehead" + (f"-{command}" if command else "")
    with open(os.path.join(PAGES, name + ".1"), encoding="utf-8") as file:
        return file.read().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")


def commands():
    return re.findall(r"^  (\w+)  +[a-z]", text_of().split("Commands:")[1].split("\n\n")[0], re.M)


def words(text):
    return re.findall(r"[\w\-/|,.=`']+", text)


class TestMan(unittest.TestCase):
    def test_every_command_has_a_page_with_its_options_and_their_meaning(self):
        self.assertGreaterEqual(len(commands()), 7)
        for command in commands():
            page, text = page_of(command), text_of(command)
            for option in re.findall(r"^  (--[a-z0-9-]+)", text, re.M):
                self.assertRegex(page, rf"(?m)^{option}\b", command)
            # Nothing is left out, nor is anything there that --help doesn't say.
            said, shown = words(text.split("\n\n", 1)[1]), words(page.split(".SH DESCRIPTION")[1].split(".SH ENVIRONMENT")[0])
            missing = set(said) - set(shown)
            self.assertFalse({word for word in missing if word.isalpha()}, command)
            self.assertIn(f"onehead-{command} - ", page)

    def test_the_commands_own_page_lists_them(self):
        page = page_of("")
        for command in commands():
            self.assertRegex(page, rf"(?m)^{command}\b")
            self.assertIn(f"onehead-{command} (1)", page)

    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc")
    def test_pages_read_without_a_warning(self):
        pages = [os.path.join(PAGES, name) for name in os.listdir(PAGES)]
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
