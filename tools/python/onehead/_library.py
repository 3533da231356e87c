"""Finds libonehead, loads it once and declares its functions.

Searched in this order:

1. the file that the environment variable ``ONEHEAD_LIBRARY`` names (an absolute path);
2. the copy that a wheel carries, ``onehead/_lib/libonehead.so.0``;
3. the build tree of the repository that this package lies in, ``build/*/lib``, newest first;
4. the system: whatever the dynamic linker finds as ``libonehead.so.0``.
"""

from __future__ import annotations

import ctypes as C
import functools
import os
import pathlib
from typing import Any, List, Optional

from . import _structs as S

SONAME = "libonehead.so.0"

#: Versions of the library whose structures this package knows: "major.minor".
ABI = "0.1"

_PACKAGE = pathlib.Path(__file__).resolve().parent
_CARRIED = _PACKAGE / "_lib"


class OneheadError(RuntimeError):
    """The library refused or failed; the message is its own. ``status`` is its oh_status."""

    status = 0


class InvalidArgument(OneheadError, ValueError):
    """OH_INVALID_ARGUMENT and OH_BAD_DATA: the request has no meaning, or the data contradicts it."""


class OutOfMemory(OneheadError, MemoryError):
    """OH_OUT_OF_MEMORY: an allocation failed or the memory budget is too small."""


class NoBackend(OneheadError):
    """OH_NO_BACKEND: no such backend or device, or the plugin was refused."""


_ERRORS = {1: InvalidArgument, 2: InvalidArgument, 3: NoBackend, 4: OutOfMemory}

_P = C.POINTER
_FUNCTIONS = {
    "oh_version": (C.c_char_p, []),
    "oh_status_name": (C.c_char_p, [C.c_int]),
    "oh_backend_list": (C.c_int64, [_P(S.BackendCandidate), C.c_int64]),
    "oh_backend_load": (C.c_int, [C.c_char_p, _P(_P(S.BackendHead)), _P(S.Error)]),
    "oh_context_open": (C.c_int, [_P(S.ContextOptions), _P(C.c_void_p), _P(S.Error)]),
    "oh_context_close": (None, [C.c_void_p]),
    "oh_context_backend": (_P(S.BackendHead), [C.c_void_p]),
    "oh_context_device_info": (C.c_int, [C.c_void_p, _P(S.DeviceInfo), _P(S.Error)]),
    "oh_objective_set_terms": (C.c_int, [_P(S.Objective), C.c_char_p, _P(S.Error)]),
    "oh_objective_set_decay": (C.c_int, [_P(S.Objective), C.c_char_p, _P(S.Error)]),
    "oh_objective_set_top_k": (C.c_int, [_P(S.Objective), C.c_char_p, _P(S.Error)]),
    "oh_request_init": (None, [_P(S.Request)]),
    "oh_op_name": (C.c_char_p, [C.c_int32]),
    "oh_plan_create": (C.c_int, [C.c_void_p, _P(S.Request), _P(C.c_void_p), _P(S.Error)]),
    "oh_plan_describe": (C.c_int, [_P(S.Request), _P(C.c_void_p), _P(S.Error)]),
    "oh_plan_destroy": (None, [C.c_void_p]),
    "oh_plan_get_summary": (_P(S.PlanSummary), [C.c_void_p]),
    "oh_plan_nodes": (_P(S.Node), [C.c_void_p, C.c_int, _P(C.c_int64)]),
    "oh_plan_consumer_name": (C.c_char_p, [C.c_void_p, C.c_int32]),
    "oh_plan_weight_changed": (None, [C.c_void_p]),
    "oh_plan_run": (C.c_int, [C.c_void_p, _P(S.Inputs), _P(S.Outputs), _P(S.Error)]),
    "oh_plan_results": (C.c_int, [C.c_void_p, _P(S.Results), _P(S.Error)]),
    "oh_plan_device_sums": (C.c_void_p, [C.c_void_p]),
    "oh_results_from_sums": (
        None,
        [_P(S.Objective), C.c_void_p, C.c_void_p, C.c_int, C.c_uint32, _P(S.Results)],
    ),
}


def _candidates() -> List[str]:
    named = os.environ.get("ONEHEAD_LIBRARY")
    if named:
        if not os.path.isabs(named):
            raise OneheadError(f"ONEHEAD_LIBRARY={named}: expected an absolute path")
        return [named]
    found = [str(_CARRIED / SONAME)] if (_CARRIED / SONAME).exists() else []
    root = _PACKAGE.parent.parent.parent  # of the repository, when the package lies in its tools/python
    if (root / "core" / "include" / "onehead" / "onehead.h").exists():
        built = [b for b in root.glob(f"build/*/lib/{SONAME}") if b.parts[-3] in ("cpu", "cuda", "release")]
        found += [str(b) for b in sorted(built, key=lambda b: b.stat().st_mtime, reverse=True)]
    return found + [SONAME]


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """The loaded library. Raises OneheadError where there is none, or one of another version."""
    tried = []
    for name in _candidates():
        try:
            lib = C.CDLL(name)
        except OSError as error:
            tried.append(str(error))
            continue
        for function, (result, arguments) in _FUNCTIONS.items():
            entry = getattr(lib, function)
            entry.restype, entry.argtypes = result, arguments
        version = lib.oh_version().decode()
        if version.rpartition(".")[0] != ABI:
            raise OneheadError(f"{name} is version {version}; this package works with {ABI}.x")
        _check_layout(lib, name)
        lib.path = name
        return lib
    raise OneheadError(
        "libonehead was not found; build it (tools/run), install it, or name it in ONEHEAD_LIBRARY. Tried: "
        + "; ".join(tried)
    )


def _check_layout(lib: Any, name: str) -> None:
    """The library clears a whole request when asked for a new one, which shows how long it takes a request to be."""
    buffer = (C.c_ubyte * (C.sizeof(S.Request) + 4096))(*([0xA5] * (C.sizeof(S.Request) + 4096)))
    lib.oh_request_init(C.cast(buffer, _P(S.Request)))
    size = max(i for i, byte in enumerate(buffer) if byte != 0xA5) + 1
    if size != C.sizeof(S.Request):
        raise OneheadError(
            f"{name}: its oh_request has {size} bytes, this package's {C.sizeof(S.Request)}: they are not of one build"
        )


def check(status: int, error: S.Error, doing: str = "") -> None:
    """Raises what `error` says unless `status` is OH_OK."""
    if status == 0:
        return
    said = error.message.decode("utf-8", "replace") or library().oh_status_name(status).decode()
    raised = _ERRORS.get(status, OneheadError)(f"{doing}: {said}" if doing else said)
    raised.status = status
    raise raised


def backend_file(name: str) -> Optional[str]:
    """The plugin that a wheel carries for `name`, where there is one and no search path goes before it."""
    carried = _CARRIED / "backends" / f"onehead-{name}.so"
    if "/" in name or os.environ.get("ONEHEAD_BACKEND_PATH") or not carried.exists():
        return None
    return str(carried)


def carried_backends() -> List[str]:
    """Names of the plugins that a wheel carries and the package would take."""
    files = (_CARRIED / "backends").glob("onehead-*.so")
    return [name for name in sorted(f.stem[len("onehead-") :] for f in files) if backend_file(name)]


def version() -> str:
    """The loaded library's version."""
    return library().oh_version().decode()
