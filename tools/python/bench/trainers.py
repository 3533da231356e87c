"""What trainers write in plain PyTorch: the divergence with a drafter's weights, top-1, top-4 and top-8 streaks."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
from inputs import BLOCK, Inputs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK, TOP_K = 2048, (1, 4, 8)


class Head:
    """The projection, counted."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.projections = weight, 0

    def __call__(self, hidden: Tensor) -> Tensor:
        self.projections += 1
        return hidden @ self.weight.T


def kl_rows(z: Tensor, t: Tensor) -> Tensor:
    log_p, log_q = torch.log_softmax(z.float(), -1), torch.log_softmax(t.float(), -1)
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def streaks(hits: List[Tensor]) -> Tensor:
    """Mean accepted length, anchors left out."""
    return torch.cat(hits).reshape(-1, BLOCK)[:, 1:].float().cumprod(1).sum(1).mean()


def chunks(inputs: Inputs) -> Any:
    for i in range(0, len(inputs.draft), CHUNK):
        rows = slice(i, i + CHUNK)
        yield inputs.draft[rows], inputs.target[rows], inputs.weight[rows]


def naive(inputs: Inputs) -> Callable[[], Dict[str, Any]]:
    """Loss, accuracy and each top-K one after the other, each with projections of its own."""

    def step() -> Dict[str, Any]:
        head = Head(inputs.head)

        def chunk_loss(d: Tensor, g: Tensor, w: Tensor) -> Tensor:
            return (w * kl_rows(head(d), head(g))).sum()

        loss = sum(checkpoint(chunk_loss, *c, use_reentrant=False) for c in chunks(inputs)) / inputs.norm
        loss.backward()
        with torch.no_grad():
            labels = [head(g).argmax(-1) for _, g, _ in chunks(inputs)]
            hits = {1: [head(d).argmax(-1) == y for (d, _, _), y in zip(chunks(inputs), labels)]}
            for k in TOP_K[1:]:
                hits[k] = [
                    (head(d).topk(k).indices == y[:, None]).any(-1) for (d, _, _), y in zip(chunks(inputs), labels)
                ]
        return dict(loss=loss, streaks={k: streaks(h) for k, h in hits.items()}, projections=head.projections)

    return step


def figures(hits: Dict[int, List[Tensor]], z: Tensor, t: Tensor) -> None:
    ids, label = z.topk(max(TOP_K)).indices, t.argmax(-1)
    for k in TOP_K:
        hits[k].append((ids[:, :k] == label[:, None]).any(-1))


def shared(inputs: Inputs) -> Callable[[], Dict[str, Any]]:
    """The same, figures read off the logits of the loss' forward pass; backward still projects again."""

    def step() -> Dict[str, Any]:
        head, hits = Head(inputs.head), {k: [] for k in TOP_K}
        forward = True

        def chunk_loss(d: Tensor, g: Tensor, w: Tensor) -> Tensor:
            z, t = head(d), head(g)
            if forward:
                figures(hits, z.detach(), t.detach())
            return (w * kl_rows(z, t)).sum()

        loss = sum(checkpoint(chunk_loss, *c, use_reentrant=False) for c in chunks(inputs)) / inputs.norm
        forward = False
        loss.backward()
        return dict(loss=loss, streaks={k: streaks(h) for k, h in hits.items()}, projections=head.projections)

    return step


def kl_and_gradient(z: Tensor, t: Tensor, w: Tensor) -> Any:
    """Weighted losses, and the gradient by the logits in their dtype."""
    log_p, log_q = torch.log_softmax(z.float(), -1), torch.log_softmax(t.float(), -1)
    q = log_q.exp()
    return w * (q * (log_q - log_p)).sum(-1), ((log_p.exp() - q) * w[:, None]).to(z.dtype)


def compiled(inputs: Inputs) -> Callable[[], Dict[str, Any]]:
    """The same, the softmaxes by torch.compile."""
    return in_forward(inputs, torch.compile(kl_and_gradient))


def in_forward(inputs: Inputs, fused: Callable[..., Any] = kl_and_gradient) -> Callable[[], Dict[str, Any]]:
    """The gradient formed in the forward pass: two projections a chunk."""

    @torch.no_grad()
    def step() -> Dict[str, Any]:
        head, hits, losses = Head(inputs.head), {k: [] for k in TOP_K}, []
        grad = torch.empty_like(inputs.draft)
        for i, (d, g, w) in enumerate(chunks(inputs)):
            z, t = head(d), head(g)
            figures(hits, z, t)
            rows, dz = fused(z, t, w)
            losses.append(rows.sum())
            # w is divided by N behind the product, in f32: small gradients keep their digits in bf16.
            grad[i * CHUNK : i * CHUNK + len(d)] = (dz @ inputs.head).float() / inputs.norm
        inputs.draft.grad = grad
        return dict(
            loss=sum(losses) / inputs.norm,
            streaks={k: streaks(h) for k, h in hits.items()},
            projections=head.projections,
        )

    return step
