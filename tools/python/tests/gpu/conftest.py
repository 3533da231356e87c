"""Tests on CUDA devices, with one command: pytest tools/python/tests/gpu. Without a device they are skipped."""

import pathlib

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if HERE in pathlib.Path(str(item.fspath)).parents:
            item.add_marker(pytest.mark.skip(reason="PyTorch sees no CUDA device"))
