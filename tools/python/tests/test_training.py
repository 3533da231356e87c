"""The example trains alike with onehead and with plain PyTorch, and draws both curves."""

import os
import subprocess
import sys

from conftest import PACKAGE


def test_both_trainings_agree(tmp_path):
    plot = tmp_path / "curves.svg"
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "examples" / "train.py"), "--steps", "100", "--blocks", "4", "--plot", str(plot)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(PACKAGE)),
    )
    assert done.returncode == 0, done.stdout
    assert plot.read_text().count("<polyline") == 4
