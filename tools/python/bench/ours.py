"""onehead's steps on the objectives of compare.py, and the C call alone on the same plan."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict

import torch
from inputs import GAMMA, Inputs
from torch import Tensor

import onehead
from onehead import _call, _context, _step, functions
from onehead._autograd import gradients
from onehead._recall import TENSORS

CHUNK, MEMORY, THREADS = 2048, "16G", None  # threads: of a CPU backend
#: Arguments of draft_loss by objective. Rows of jsd and ce stand for themselves.
ALIKE: Dict[str, Any] = dict(block_size=1, first_slot=0, decay="none", norm="count", metrics="none", topk=())
OBJECTIVES: Dict[str, Dict[str, Any]] = {
    "kl": dict(terms={"kl": 1.0}, decay=("exp", GAMMA), norm="weights"),
    "jsd": dict(terms={"jsd": 1.0}, **ALIKE),
    "ce": dict(terms={"ce": 1.0}, **ALIKE),
}


def arguments(inputs: Inputs, objective: str, **options: Any) -> Dict[str, Any]:
    """Of draft_loss, without draft_hidden."""
    found = dict(OBJECTIVES[objective], lm_head=inputs.head, chunk=CHUNK, memory=MEMORY, threads=THREADS)
    found["grad_dtype"] = inputs.draft.dtype
    if objective == "ce":
        found["labels"] = inputs.labels.cpu()
    else:
        found["target_hidden"] = inputs.target
    return dict(found, **options)


def step(inputs: Inputs, objective: str, **options: Any) -> Callable[[], Dict[str, Any]]:
    rest = arguments(inputs, objective, **options)

    def run() -> Dict[str, Any]:
        loss, metrics = onehead.draft_loss(inputs.draft, **rest)
        loss.backward()
        return dict(loss=loss.detach(), metrics=metrics)

    return run


def plan(inputs: Inputs, objective: str, **options: Any) -> onehead.Plan:
    return onehead.plan(inputs.draft, **arguments(inputs, objective, **options))


def c_call(draft: Tensor, rest: Dict[str, Any]) -> Callable[[], Dict[str, Any]]:
    """oh_plan_run on the plan that draft_loss(draft, **rest) makes, with outputs made once: what a C program spends. The
    workspace is the memory that draft_loss uses, since where it lies matters. `draft` requires a gradient, the weights don't."""
    rest = dict(dict(terms=None, topk=(1, 4, 8), norm="weights", decay=("exp", 10.0)), **rest)
    onehead.draft_loss(draft, **rest)
    device = draft.device
    context = _context.context_for(rest.get("backend"), device, rest.get("threads") or 0)
    live = context.last_plan
    tensors = [draft.detach(), *[rest.pop(name, None) for name in TENSORS[1:]]]
    made, batch = functions.prepare(tensors, rest.pop("terms"), rest)
    call = _call.call_of(made, batch, made.produce | gradients(True, False, False), False)
    outputs = _step._allocate(call, batch)
    c_outputs = _step.S.Outputs(**{name: tensor.data_ptr() for name, tensor in outputs.items()})
    c_inputs = _step._inputs(call, batch, context.workspace(live.workspace_bytes), context.stream())

    def run() -> Dict[str, Any]:
        workspace = context.workspace(live.workspace_bytes)
        c_inputs.workspace, c_inputs.workspace_bytes = workspace.data_ptr(), workspace.numel() * 8
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            live.run(c_inputs, c_outputs, (batch.weight, batch.target_weight))
        return dict(grad=outputs["draft_grad"], keep=batch)

    return run
