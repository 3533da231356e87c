"""What pip makes of the package, and the command-line check."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import PACKAGE

from onehead._library import library

VENV = "import venv, sys; venv.create(sys.argv[1], with_pip=True, system_site_packages=True)"
LIBRARY = pathlib.Path(library().path)


def run(*command, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ONEHEAD_", "PYTHONPATH"))}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**kept, **environment}, cwd="/"
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_self_check(tmp_path):
    done = subprocess.run([sys.executable, "-m", "onehead"], stdout=subprocess.PIPE, text=True, cwd=PACKAGE)
    assert done.returncode == 0 and "check     ok" in done.stdout
    failed = subprocess.run([sys.executable, "-m", "onehead", "--bound", "0"], stdout=subprocess.PIPE, text=True, cwd=PACKAGE)
    assert failed.returncode == 1 and "FAILED" in failed.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_self_check_says_that_there_is_no_device():
    done = subprocess.run(
        [sys.executable, "-m", "onehead", "--device", "cuda"], stderr=subprocess.PIPE, text=True, cwd=PACKAGE
    )
    assert done.returncode == 1 and "PyTorch sees no CUDA device" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not LIBRARY.is_absolute() or "lib" not in LIBRARY.parts, reason="needs a build tree's library")
def test_pip_install_carries_library_and_backend(tmp_path):
    """Into a venv with system packages, without build isolation (which would download setuptools)."""
    venv = tmp_path / "venv"
    run(sys.executable, "-c", VENV, str(venv))
    source = tmp_path / "tools" / "python"
    run("cp", "-r", str(PACKAGE), str(tmp_path / "python"))
    source.parent.mkdir()
    (tmp_path / "python").rename(source)
    (tmp_path / "CMakeLists.txt").write_text((PACKAGE.parent.parent / "CMakeLists.txt").read_text())
    build = next(p for p in LIBRARY.parents if (p / "backends").is_dir())
    install = (str(venv / "bin/pip"), "install", "--no-build-isolation", "--no-deps", "--no-index", str(source))
    run(*install, ONEHEAD_BUILD_DIR=str(build))
    # What an earlier build left is not taken again.
    stale = next((source / "build").glob("**/_lib/backends")) / "onehead-stale.so"
    stale.write_text("")
    with pytest.raises(AssertionError, match="expected a build tree"):
        run(*install, ONEHEAD_BUILD_DIR="/nonexistent")
    run(*install, "--force-reinstall", ONEHEAD_BUILD_DIR=str(build))
    said = run(str(venv / "bin/python"), "-m", "onehead")
    assert "stale" not in said
    assert f"{venv}" in said.splitlines()[0] and "check     ok" in said
    backends = [line.split() for line in said.splitlines() if line.startswith("backend")]
    assert ["backend", "openblas"] in [line[:2] for line in backends if line[2].startswith(str(venv))]
    assert "template" not in [name for _, name, path, *_ in backends if path.startswith(str(venv))]
    carried = next(pathlib.Path(line[2]) for line in backends if line[1] == "openblas")
    carried.parent.chmod(0o775)
    with pytest.raises(AssertionError, match="openblas .*refused: .*writable by group"):
        run(str(venv / "bin/python"), "-m", "onehead")
