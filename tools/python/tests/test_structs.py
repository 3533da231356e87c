"""The structures that ctypes sees are those that the C compiler sees."""

import ctypes
import re
import shutil
import subprocess

import pytest
from conftest import PACKAGE, ROOT

from onehead import _library
from onehead import _structs as S

HEADERS = ROOT / "core" / "include"
STRUCTURES = {
    "oh_error": S.Error,
    "oh_objective": S.Objective,
    "oh_context_options": S.ContextOptions,
    "oh_request": S.Request,
    "oh_inputs": S.Inputs,
    "oh_outputs": S.Outputs,
    "oh_top_k_result": S.TopKResult,
    "oh_results": S.Results,
    "oh_node": S.Node,
    "oh_plan_summary": S.PlanSummary,
    "oh_backend_candidate": S.BackendCandidate,
    "oh_device_info": S.DeviceInfo,
}
CONSTANTS = {
    "OH_PRODUCE_LOSS": S.PRODUCE_LOSS,
    "OH_PRODUCE_GRAD": S.PRODUCE_GRAD,
    "OH_PRODUCE_HEAD_GRAD": S.PRODUCE_HEAD_GRAD,
    "OH_PRODUCE_BIAS_GRAD": S.PRODUCE_BIAS_GRAD,
    "OH_PRODUCE_METRICS": S.PRODUCE_METRICS,
    "OH_PRODUCE_OVERLAP": S.PRODUCE_OVERLAP,
    "OH_PRODUCE_TOP_K": S.PRODUCE_TOP_K,
    "OH_PRODUCE_ROWS": S.PRODUCE_ROWS,
    "OH_PRODUCE_TOP_K_ROWS": S.PRODUCE_TOP_K_ROWS,
    "OH_TERM_COUNT": len(S.TERMS),
    "OH_SUM_FIXED": S.SUM_FIXED,
    "OH_SUM_FIRST_NONFINITE": S.SUM_FIRST_NONFINITE,
    "OH_SUM_TARGET_TOP1": S.SUM_TARGET_TOP1,
    "OH_DECAY_DPACE": S.DECAYS.index("dpace"),
    "OH_NORM_NUMBER": S.NORMS.index("number"),
    "OH_LABELS_GIVEN": S.LABELS.index("given"),
    "OH_GAP_SKIP": S.GAPS.index("skip"),
    "OH_OUTSIDE_KEEP": S.OUTSIDE.index("keep"),
    "OH_POLICY_NAIVE": S.POLICIES.index("naive"),
    "OH_TILE_DIFF": S.TILES["diff"],
    "OH_CAP_HOST_MEMORY": S.CAP_HOST_MEMORY,
    "OH_DEVICE_MASK": S.DEVICE_MASK,
    "OH_DEVICE_LABEL": S.DEVICE_LABEL,
    "OH_DEVICE_TARGET_ROW": S.DEVICE_TARGET_ROW,
}


@pytest.mark.skipif(not HEADERS.exists() or not shutil.which("cc"), reason="needs the headers and a C compiler")
def test_sizes_offsets_and_constants_are_the_headers(tmp_path):
    lines = ["#include <stddef.h>", "#include <onehead/onehead.h>"]
    for c_name, structure in STRUCTURES.items():
        lines.append(f'_Static_assert(sizeof({c_name}) == {ctypes.sizeof(structure)}, "{c_name}");')
        for name, *_ in structure._fields_:
            field = name.rstrip("_")
            offset = getattr(structure, name).offset
            lines.append(f'_Static_assert(offsetof({c_name}, {field}) == {offset}, "{c_name}.{field}");')
    lines += [f'_Static_assert((long){name} == {value}, "{name}");' for name, value in CONSTANTS.items()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        ["cc", "-std=c17", "-fsyntax-only", f"-I{HEADERS}", str(source)], stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_package_knows_the_versions_of_this_repository():
    text = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(onehead VERSION (\d+\.\d+)\.\d+", text).group(1)
    assert _library.ABI == version


def test_a_library_with_another_request_is_refused(monkeypatch):
    class Grown(ctypes.Structure):
        _fields_ = S.Request._fields_ + [("new", ctypes.c_int64)]

    monkeypatch.setattr(S, "Request", Grown)
    with pytest.raises(_library.OneheadError, match="not of one build"):
        _library._check_layout(ctypes.CDLL(_library.library().path), "a library")


def test_the_version_line(capsys):
    assert re.fullmatch(r"\d+\.\d+\.\d+", _library.version()) and (PACKAGE / "onehead").is_dir()
