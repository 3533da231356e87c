"""What a step would run, before it runs."""

from __future__ import annotations

import ctypes as C
import dataclasses
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._autograd import gradients
from ._call import request_for, shape_of
from ._context import Plan as _LivePlan
from ._context import context_for
from ._library import check, library
from ._options import Memory
from .functions import prepare

_TILE_NAMES = {value: name for name, value in S.TILES.items()}


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation of the plan."""

    op: str
    k: int  # of top-K operations, else 0
    stage: int  # nodes of one stage share one pass over the vocabulary
    inputs: Tuple[int, ...]
    consumers: Tuple[str, ...]  # who wants it: "loss", "topk:4", ...
    flops: float  # per full chunk
    bytes: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """A step's plan; counts are for all rows supervised."""

    rows: int
    policy: str
    tile: str
    tile_reason: str  # why this one
    chunk: int  # rows
    chunks: int
    panel: int  # vocabulary columns that a pass takes at once
    projections: Dict[str, int]  # "draft", "target": per step
    gemms: int  # per step, with those of the gradient
    flops: float  # of the GEMMs of a step
    workspace_bytes: int
    weight_bytes: int  # converted weights, kept between steps
    nodes_before: int  # every consumer on its own
    nodes: Tuple[Node, ...]  # after merging

    def __str__(self) -> str:
        lines = [
            f"policy {self.policy}, tile {self.tile} ({self.tile_reason}), {self.chunks} chunks of {self.chunk} rows, "
            f"{self.panel} columns at once",
            f"projections: {self.projections['draft']} draft, {self.projections['target']} target; GEMMs: {self.gemms}; "
            f"{self.flops / 1e12:.3g} TFLOP",
            f"memory: {self.workspace_bytes / 2**20:.1f} MiB workspace, {self.weight_bytes / 2**20:.1f} MiB converted "
            "weights",
            f"nodes: {self.nodes_before}, {len(self.nodes)} after merging",
        ]
        lines += [
            f"  {i:3} stage {n.stage}  {n.op + (f':{n.k}' if n.k else ''):18} <- "
            f"{', '.join(map(str, n.inputs)) or '-':12} for {', '.join(n.consumers)}"
            for i, n in enumerate(self.nodes)
        ]
        return "\n".join(lines)


def plan(
    draft_hidden: Tensor,
    lm_head: Tensor,
    target_hidden: Optional[Tensor] = None,
    target_row: Optional[Tensor] = None,
    labels: Union[Tensor, str, None] = None,
    loss_mask: Optional[Tensor] = None,
    *,
    target_lm_head: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    target_bias: Union[Tensor, bool, None] = None,
    draft_to_target: Optional[Tensor] = None,
    terms: Any = None,
    norm: Any = "weights",
    decay: Any = ("exp", 10.0),
    topk: Any = (1, 4, 8),
    memory: Memory = None,
    gradient: Optional[bool] = None,
    **options: Any,
) -> Plan:
    """The plan that draft_loss would run for these arguments, which are its own.

    Only shapes, dtypes and requires_grad of tensors matter: those on the ``meta`` device cost no memory and give the
    plan of a CPU. ``gradient`` says whether the step forms draft_hidden's gradient; None: as draft_loss would, by
    requires_grad and the grad mode. For other tensors the backend is asked, and its converted weights, where it keeps
    any, are allocated for the time of the call.
    """
    tensors = (
        draft_hidden, lm_head, target_hidden, target_row, labels, loss_mask, target_lm_head, bias, target_bias,
        draft_to_target,
    )  # fmt: skip
    made, batch = prepare(tensors, terms, dict(options, norm=norm, decay=decay, topk=topk, memory=memory))
    enabled = torch.is_grad_enabled()
    produce = made.produce
    if gradient if gradient is not None else enabled and batch.draft.requires_grad:
        produce |= S.PRODUCE_GRAD
    if enabled:
        bias_trains = batch.bias is not None and batch.bias.requires_grad
        produce |= gradients(False, batch.weight.requires_grad, bias_trains)
    request = request_for(made, shape_of(made, batch, produce, batch.weight.requires_grad, exact=True), True, batch.weight)
    if batch.draft.is_meta:
        handle, error = C.c_void_p(), S.Error()
        check(library().oh_plan_describe(request, C.byref(handle), error), error)
        return _read(handle, request.rows)
    context = context_for(made.backend, batch.draft.device, made.threads)
    with context.lock:
        return _read(_LivePlan(context, request)._handle, request.rows)


def _read(handle: C.c_void_p, rows: int) -> Plan:
    """Reads and destroys an oh_plan."""
    lib = library()
    try:
        s = lib.oh_plan_get_summary(handle).contents
        count = C.c_int64()
        lib.oh_plan_nodes(handle, 0, C.byref(count))
        before = count.value
        nodes = lib.oh_plan_nodes(handle, 1, C.byref(count))
        return Plan(
            rows=rows,
            policy=S.POLICIES[s.policy],
            tile=_TILE_NAMES[s.tile],
            tile_reason=s.tile_reason.decode(),
            chunk=s.chunk,
            chunks=s.chunks,
            panel=s.panel,
            projections={"draft": s.projections_draft, "target": s.projections_target},
            gemms=s.gemms,
            flops=s.flops,
            workspace_bytes=s.workspace_bytes,
            weight_bytes=s.weight_bytes,
            nodes_before=before,
            nodes=tuple(_node(handle, nodes[i]) for i in range(count.value)),
        )
    finally:
        lib.oh_plan_destroy(handle)


def _node(handle: C.c_void_p, node: S.Node) -> Node:
    lib = library()
    consumers: List[str] = []
    for bit in range(32):
        if node.consumers >> bit & 1:
            consumers.append((lib.oh_plan_consumer_name(handle, bit) or b"?").decode())
    return Node(
        op=lib.oh_op_name(node.op).decode(),
        k=node.k,
        stage=node.stage,
        inputs=tuple(node.inputs[: node.input_count]),
        consumers=tuple(consumers),
        flops=node.flops,
        bytes=node.bytes,
    )
