"""Puts the library and its backends into the wheel.

They come from the folder in ONEHEAD_BUILD_DIR (a CMake build tree) or, where that isn't set, from the first of these that has
them: a build tree of this repository (build/cuda, build/cpu), an installation that pkg-config knows. Where none has them the
wheel carries none, and the package looks for an installed libonehead when it is imported.
"""

import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SONAME = "libonehead.so.0"
NOT_CARRIED = ("onehead-template",)  # the plugin authors' starting point


def version():
    return re.search(r"project\(onehead VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def pkg_config(variable):
    try:
        done = subprocess.run(
            ["pkg-config", f"--variable={variable}", "onehead"], stdout=subprocess.PIPE, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return pathlib.Path(done.stdout.strip()) if done.stdout.strip() else None


def places():
    """(library, folder of backends), in order of preference."""
    asked = os.environ.get("ONEHEAD_BUILD_DIR")
    for build in [pathlib.Path(asked)] if asked else [ROOT / "build" / "cuda", ROOT / "build" / "cpu"]:
        for library in sorted(build.glob(f"lib*/{SONAME}")) + sorted(build.glob(f"lib/*/{SONAME}")):
            yield library, build / "backends"
    if asked:
        raise SystemExit(f"ONEHEAD_BUILD_DIR {asked}: expected a build tree with lib/{SONAME}")
    libdir = pkg_config("libdir")
    if libdir is not None:
        yield libdir / SONAME, libdir / "onehead" / "backends"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        to = pathlib.Path(self.build_lib) / "onehead" / "_lib"
        shutil.rmtree(to, ignore_errors=True)  # what an earlier build left
        found = next(((lib, backends) for lib, backends in places() if lib.exists()), None)
        if found is None:
            self.announce("onehead: no built or installed library: the wheel carries none", level=3)
            return
        library, backends = found
        (to / "backends").mkdir(parents=True, exist_ok=True)
        self._copy(library, to / SONAME)
        for plugin in sorted(backends.glob("onehead-*.so")):
            if plugin.stem not in NOT_CARRIED:
                self._copy(plugin, to / "backends" / plugin.name)
        self.announce(f"onehead: the wheel carries {library} and backends from {backends}", level=3)

    @staticmethod
    def _copy(source, to):
        shutil.copyfile(source, to)
        to.chmod(0o755)  # the loader refuses plugins that others could write


class BinaryDistribution(Distribution):
    """Platform-specific, for any Python 3: nothing is compiled against Python."""

    def has_ext_modules(self):
        return True


commands = {"build_py": BuildWithLibrary}
try:
    from wheel.bdist_wheel import bdist_wheel

    class AnyPython(bdist_wheel):
        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    commands["bdist_wheel"] = AnyPython
except ImportError:
    pass

setup(version=version(), cmdclass=commands, distclass=BinaryDistribution)
