import os
import pathlib
import sys

import torch

TESTS = pathlib.Path(__file__).resolve().parent
PACKAGE = TESTS.parent
ROOT = PACKAGE.parent.parent

sys.path[:0] = [str(TESTS), str(ROOT / "golden")]
if "ONEHEAD_INSTALLED" not in os.environ:  # else: the installed package is what is tested
    sys.path.insert(0, str(PACKAGE))

torch.set_num_threads(2)
