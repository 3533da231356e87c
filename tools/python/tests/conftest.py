import os
import pathlib
import sys

import pytest
import torch

TESTS = pathlib.Path(__file__).resolve().parent
PACKAGE = TESTS.parent
ROOT = PACKAGE.parent.parent

sys.path[:0] = [str(TESTS), str(ROOT / "golden")]
if "ONEHEAD_INSTALLED" not in os.environ:  # else: the installed package is what is tested
    sys.path.insert(0, str(PACKAGE))

torch.set_num_threads(2)

import draws  # noqa: E402


@pytest.fixture
def batch():
    """draft_loss's arguments, judged by the target."""
    return dict(draws.batch(target_rows=None), labels=None)


def pytest_collection_modifyitems(items):
    """tests/gpu is skipped where there is no device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if TESTS / "gpu" in pathlib.Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.skip(reason="PyTorch sees no CUDA device"))
