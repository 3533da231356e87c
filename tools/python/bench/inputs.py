"""The batch that every case of compare.py gets, and its gradients in float64 for some rows."""

from __future__ import annotations

import dataclasses
from typing import Dict, Tuple

import torch
from torch import Tensor

BLOCK, GAMMA = 16, 10.0
PANEL = 16384  # vocabulary columns at a time in float64


@dataclasses.dataclass
class Inputs:
    """Normal, in bf16 or f32; logits of a standard deviation of 3, the drafter's hidden states half a deviation from the target's.

    For the divergence with a drafter's weights (`kl`): blocks of 16 whose first slot is the anchor, decay exp(-k / 10),
    divided by the sum of weights. For `jsd` and `ce`: every row alike, divided by their number."""

    draft: Tensor  # [T, H], requires a gradient
    target: Tensor  # [T, H]
    head: Tensor  # [V, H]
    labels: Tensor  # int64 [T]
    weight: Tensor  # f32 [T], of kl
    norm: float  # its sum


def make_inputs(
    rows: int, hidden: int, vocab: int, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 1
) -> Inputs:
    g = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=device)

    target = normal(rows, hidden)
    draft = (target + 0.5 * normal(rows, hidden)).to(dtype).requires_grad_()
    head = torch.empty(vocab, hidden, dtype=dtype, device=device)
    for i in range(0, vocab, PANEL):
        head[i : i + PANEL] = normal(min(PANEL, vocab - i), hidden) * 3 / hidden**0.5
    slot = torch.arange(rows, device=device) % BLOCK
    weight = torch.exp(-(slot - 1).float() / GAMMA) * (slot >= 1)
    labels = torch.randint(0, vocab, (rows,), generator=g, device=device)
    return Inputs(draft, target.to(dtype), head, labels, weight, float(weight.sum()))


def _rows_gradient(objective: str, z: Tensor, t: Tensor, label: Tensor) -> Tensor:
    """dl/dz [rows, V] of one row's loss."""
    p, q = z.softmax(-1), t.softmax(-1)
    if objective == "ce":
        return p.scatter_add(1, label[:, None], -torch.ones_like(p[:, :1]))
    if objective == "kl":
        return p - q
    log_ratio = z.log_softmax(-1) - ((p + q) / 2).log()
    return 0.5 * p * (log_ratio - (p * log_ratio).sum(-1, keepdim=True))


@torch.no_grad()
def exact_gradients(inputs: Inputs, count: int) -> Tuple[Tensor, Dict[str, Tensor]]:
    """(rows, {objective: dD of these rows in float64})."""
    total = len(inputs.draft)
    rows = torch.arange(count, device=inputs.draft.device) * (total // count)
    rows += (rows % BLOCK == 0).long()  # not anchors
    d, g = inputs.draft.detach()[rows].double(), inputs.target[rows].double()
    panels = range(0, len(inputs.head), PANEL)

    def project(x: Tensor) -> Tensor:
        return torch.cat([x @ inputs.head[i : i + PANEL].double().T for i in panels], 1)

    z, t = project(d), project(g)
    exact = {}
    for objective in ("kl", "jsd", "ce"):
        dz = _rows_gradient(objective, z, t, inputs.labels[rows])
        grad = sum(dz[:, i : i + PANEL] @ inputs.head[i : i + PANEL].double() for i in panels)
        scale = inputs.weight[rows].double() / inputs.norm if objective == "kl" else torch.full_like(d[:, 0], 1 / total)
        exact[objective] = grad * scale[:, None]
    return rows, exact
