"""Open devices and their plans.

One context per backend, device and thread count, shared by the process behind a lock (the library uses a context from
one thread at a time). Plans are kept in a small least-recently-used cache, keyed by options, shape class and dtypes.
"""

from __future__ import annotations

import collections
import ctypes as C
import os
import threading
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _structs as S
from ._library import InvalidArgument, OutOfMemory, backend_file, check, library

MAX_PLANS = 16  # and those that CUDA graphs replay
#: Bytes that converted weights of cached plans may hold together, on a GPU an eighth of its memory where that is more;
#: one plan's are always allowed.
MAX_WEIGHT_BYTES = 4 << 30

#: What devices are compared with: a device's type is a string that PyTorch makes each time it is asked.
CPU = torch.device("cpu")

_ALIGNMENT = 256


class WeightIdentity:
    """Which contents of which memory a converted weight was made from.

    A storage is known by its own address, which a weak reference keeps from being given away; contents by the version
    counter, which every in-place operation of PyTorch raises (what ``.data`` returns has a counter of its own, which writes
    to the parameter don't raise, and writes to it don't raise the parameter's).
    """

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        self._storage = StorageWeakRef(storage)
        self._place = (tensor.data_ptr(), tensor.stride(0))
        self._version = None if tensor.is_inference() else tensor._version

    def same(self, other: Optional["WeightIdentity"]) -> bool:
        if other is None or self._version is None:
            return False
        return (self._storage.cdata, self._place, self._version) == (
            other._storage.cdata,
            other._place,
            other._version,
        )


class Plan:
    """One oh_plan. Its workspace comes with every run."""

    def __init__(self, context: "Context", request: S.Request) -> None:
        self._lib = library()
        self._handle = C.c_void_p()
        self._error = S.Error()
        self._seen: List[Optional[WeightIdentity]] = []
        self._figures_at: Optional[int] = None
        #: A CUDA graph replays a step of this plan, out of the plan's own memory: it is never destroyed.
        self.captured = False
        status = self._lib.oh_plan_create(context.handle, request, C.byref(self._handle), self._error)
        check(status, self._error)
        self.summary = self._lib.oh_plan_get_summary(self._handle).contents
        self.workspace_bytes = self.summary.workspace_bytes
        self.weight_bytes = self.summary.weight_bytes

    def run(self, inputs: S.Inputs, outputs: S.Outputs, weights: Tuple[Optional[Tensor], ...]) -> None:
        """Enqueues one step; on a CPU backend it is then done."""
        if self.weight_bytes:
            self._follow(weights)
        check(self._lib.oh_plan_run(self._handle, inputs, outputs, self._error), self._error)

    def _follow(self, weights: Tuple[Optional[Tensor], ...]) -> None:
        now = [None if w is None else WeightIdentity(w) for w in weights]
        same = len(now) == len(self._seen) and all(
            n is s is None or n is not None and n.same(s) for n, s in zip(now, self._seen)
        )
        if not same:
            self.weight_changed()
        self._seen = now

    def weight_changed(self) -> None:
        self._lib.oh_plan_weight_changed(self._handle)

    def figures_at(self, workspace: int) -> int:
        """Where the last run left its sums, with loss, numerator, denominator and overflowed rows behind them (f64): an
        offset in bytes into its workspace, which a plan lays out alike each time. Asked for once, since a call of C after
        a step has been through the caches is slow."""
        if self._figures_at is None:
            self._figures_at = self._lib.oh_plan_device_sums(self._handle) - workspace
        return self._figures_at

    def results(self) -> S.Results:
        """Figures of the last run, after waiting for it."""
        results = S.Results()
        check(self._lib.oh_plan_results(self._handle, results, self._error), self._error)
        return results

    def destroy(self) -> None:
        self._lib.oh_plan_destroy(self._handle)


class Context:
    """An open device with its plans and, on a CPU, the workspace that they share."""

    def __init__(self, backend: str, device: torch.device, threads: int) -> None:
        self.lock = threading.RLock()
        self.device, self.on_cpu = device, device == CPU
        self.plans: "collections.OrderedDict[Hashable, Plan]" = collections.OrderedDict()
        self.last_plan: Optional[Plan] = None
        self._workspace: Optional[Tensor] = None
        self._workspace_size = 0
        self._weight_bytes_allowed = MAX_WEIGHT_BYTES
        if not self.on_cpu:
            memory = torch.cuda.get_device_properties(device).total_memory
            self._weight_bytes_allowed = max(MAX_WEIGHT_BYTES, memory // 8)
        options = S.ContextOptions()
        options.backend = (backend_file(backend) or backend).encode()
        options.device = device.index or 0
        options.threads = threads
        if not self.on_cpu:
            options.alloc = S.ContextOptions.ALLOC(self._alloc)
            options.free = S.ContextOptions.FREE(self._free)
        self._options = options  # keeps the callbacks alive
        self.handle, error = C.c_void_p(), S.Error()
        check(library().oh_context_open(options, C.byref(self.handle), error), error)
        table = library().oh_context_backend(self.handle).contents
        self.name = table.name.decode()
        self.build = table.build.decode()
        host = bool(table.caps & S.CAP_HOST_MEMORY)
        if host != self.on_cpu:
            where = "host" if host else "device"
            raise InvalidArgument(f"backend {self.name} computes in {where} memory, and the tensors are on {device}")

    # Converted weights lie in torch's caching allocator, like everything else of a training step.
    def _alloc(self, _user: Any, size: int) -> int:
        try:
            return torch.cuda.caching_allocator_alloc(size, self.device)
        except RuntimeError:
            return 0

    def _free(self, _user: Any, address: int) -> None:
        torch.cuda.caching_allocator_delete(address)

    def info(self) -> S.DeviceInfo:
        info, error = S.DeviceInfo(), S.Error()
        check(library().oh_context_device_info(self.handle, info, error), error)
        return info

    def plan(self, key: Hashable, request: Callable[[], S.Request]) -> Plan:
        """The plan for `key`, made from `request` where there is none. Only under the lock."""
        plan = self.plans.get(key)
        capturing = not self.on_cpu and torch.cuda.is_current_stream_capturing()
        if plan is None and capturing:
            raise InvalidArgument(
                "a step of this kind is captured before one has run: run the same call once, outside of the capture "
                "(the first one allocates and loads kernels)"
            )
        if plan is None:
            plan = self._make(request())
            self.plans[key] = plan
            self._evict(MAX_PLANS, self._weight_bytes_allowed)
        if plan is not self.last_plan:
            self.plans.move_to_end(key)
            self.last_plan = plan
        plan.captured |= capturing
        return plan

    def _make(self, request: S.Request) -> Plan:
        """A plan, at the price of the others where there is no memory for its weights beside theirs."""
        if not self.on_cpu:  # the weight, which it looks at on a stream of its own, is written by then
            torch.cuda.current_stream(self.device).synchronize()
        try:
            return Plan(self, request)
        except OutOfMemory:
            if not any(plan.weight_bytes for plan in self.plans.values()):
                raise
            self._evict(0, 0)
            return Plan(self, request)

    def _evict(self, count: int, weight_bytes: int) -> None:
        """Destroys the plans used longest ago until `count` are left, with as many bytes: never the newest of several, nor
        one that a CUDA graph replays."""
        for key in [key for key, plan in self.plans.items() if not plan.captured][: -1 if count else None]:
            kept = sum(plan.weight_bytes for plan in self.plans.values())
            if len(self.plans) <= count and kept <= weight_bytes:
                return
            plan = self.plans.pop(key)
            plan.destroy()
            self.last_plan = None if self.last_plan is plan else self.last_plan

    def workspace(self, size: int) -> Tensor:
        """At least `size` bytes (as f64 elements) at the alignment that plans count on. On a CPU one buffer serves all
        plans, which run in turn; on a GPU the caching allocator hands it out in stream order."""
        elements = (size + _ALIGNMENT) // 8 + 1
        if not self.on_cpu:
            return _aligned(torch.empty(elements, dtype=torch.float64, device=self.device))
        if self._workspace is None or self._workspace_size < size:
            self._workspace = None  # the old one first
            self._workspace, self._workspace_size = _aligned(torch.empty(elements, dtype=torch.float64, device=CPU)), size
        return self._workspace

    def stream(self) -> Optional[int]:
        if self.on_cpu:
            return None
        # The default stream has the handle 0, which the library reads as "one of your own": cudaStreamLegacy is 1.
        return torch.cuda.current_stream(self.device).cuda_stream or 1


def _aligned(buffer: Tensor) -> Tensor:
    return buffer[-buffer.data_ptr() % _ALIGNMENT // 8 :]


_contexts: Dict[Tuple[str, torch.device, int], Context] = {}
_contexts_lock = threading.Lock()


def context_for(backend: Optional[str], device: torch.device, threads: int) -> Context:
    """The open context for these tensors. `backend` None: openblas for CPU tensors, cuda for CUDA tensors."""
    on_cpu = device == CPU
    key = (backend or ("openblas" if on_cpu else "cuda"), device, threads or (torch.get_num_threads() if on_cpu else 0))
    found = _contexts.get(key)
    if found is not None:
        return found
    if device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"tensors on {device}: expected cpu or cuda")
    with _contexts_lock:
        if key not in _contexts:
            _contexts[key] = Context(*key)
        return _contexts[key]


def contexts() -> List[Context]:
    """Every context of this process."""
    with _contexts_lock:
        return list(_contexts.values())


def weight_changed() -> None:
    """Tells every plan that a frozen weight's contents changed in a way that its version counter does not show
    (``weight.data.copy_(...)``, a checkpoint loaded into sharded parameters): 16-bit copies are made anew."""
    for context in contexts():
        with context.lock:
            for plan in context.plans.values():
                plan.weight_changed()


def _forget_after_fork() -> None:
    # Locks may be held by threads that don't exist here, and device handles belong to the parent: start anew.
    global _contexts_lock
    _contexts.clear()
    _contexts_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
