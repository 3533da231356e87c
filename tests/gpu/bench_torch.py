"""The same step in PyTorch and in onehead, in one process and taking turns: bench_torch.py [--rows T] [--rounds N]

`naive` is what the trainer did: loss, metrics and two top-K each project on their own, and the backward pass projects
again (8 projections and a product a chunk). `shared` keeps the logits of a chunk for all of them and takes the gradient
from them (2 and 1), operation by operation. Both in bf16 with f32 softmaxes. Needs ONEHEAD_LIBRARY and
ONEHEAD_BACKEND_PATH.
"""
import argparse
import json
import os
import statistics
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python"))
import onehead  # noqa: E402

HIDDEN, VOCAB, CHUNK = 5120, 248320, 2048


def weights(rows):
    slot = torch.arange(rows, device="cuda") % 16
    return torch.exp(-(slot - 1).float() / 10) * (slot >= 1)


def terms(z, t):
    """KL of each row and the gradient by its logits."""
    log_p, log_q = torch.log_softmax(z.float(), -1), torch.log_softmax(t.float(), -1)
    q = log_q.exp()
    return (q * (log_q - log_p)).sum(-1), log_p.exp() - q


def naive(draft, target, head, weight, norm):
    grad, total, figures = torch.empty_like(draft), 0, []
    for i in range(0, len(draft), CHUNK):
        d, g, w = draft[i : i + CHUNK], target[i : i + CHUNK], weight[i : i + CHUNK]
        total = total + (w * terms(d @ head.T, g @ head.T)[0]).sum()
        label = (g @ head.T).argmax(-1)
        figures.append(((d @ head.T).argmax(-1) == label).sum())
        for k in (4, 8):
            figures.append(((d @ head.T).topk(k).indices == label[:, None]).any(-1).sum())
        dz = terms(d @ head.T, g @ head.T)[1] * (w / norm)[:, None]
        grad[i : i + CHUNK] = dz.bfloat16() @ head
    return total / norm, grad, figures


def shared(draft, target, head, weight, norm):
    grad, total, figures = torch.empty_like(draft), 0, []
    for i in range(0, len(draft), CHUNK):
        d, g, w = draft[i : i + CHUNK], target[i : i + CHUNK], weight[i : i + CHUNK]
        z, t = d @ head.T, g @ head.T
        kl, dz = terms(z, t)
        total = total + (w * kl).sum()
        ids, label = z.topk(8).indices, t.argmax(-1)
        for k in (1, 4, 8):
            figures.append((ids[:, :k] == label[:, None]).any(-1).sum())
        grad[i : i + CHUNK] = (dz * (w / norm)[:, None]).bfloat16() @ head
    return total / norm, grad, figures


def timed(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(1)
    target = torch.randn(options.rows, HIDDEN, device="cuda").bfloat16()
    draft = (target.float() + 0.5 * torch.randn_like(target, dtype=torch.float32)).bfloat16()
    head = (torch.randn(VOCAB, HIDDEN, device="cuda") * 3 / HIDDEN**0.5).bfloat16()
    weight = weights(options.rows)
    norm = weight.sum()
    leaf = draft.clone().requires_grad_()

    def ours(tile, first_slot):
        leaf.grad = None
        loss, _ = onehead.draft_loss(leaf, head, target, tile=tile, chunk=CHUNK, memory="32G", metrics="one-read",
                                     first_slot=first_slot, grad_dtype=torch.bfloat16)
        loss.backward()
        return loss

    cases = {
        "pytorch naive": lambda: naive(draft, target, head, weight, norm),
        "pytorch shared": lambda: shared(draft, target, head, weight, norm),
        "onehead bf16, all rows": lambda: ours("bf16", 0),
        "onehead bf16, anchors compacted": lambda: ours("bf16", 1),
        "onehead diff, anchors compacted": lambda: ours("diff", 1),
    }
    for work in cases.values():
        work()
    times = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, work in cases.items():
            times[name].append(timed(work))
    middle = {name: statistics.median(ms) for name, ms in times.items()}
    losses = [naive(draft, target, head, weight, norm)[0].item(), ours("diff", 1).item()]
    assert abs(losses[0] - losses[1]) < 2e-3 * losses[0], losses
    print(json.dumps({"rows": options.rows, "losses": losses, "step_ms": middle,
                      "times_naive": {name: middle["pytorch naive"] / ms for name, ms in middle.items()}}))


if __name__ == "__main__":
    main()
