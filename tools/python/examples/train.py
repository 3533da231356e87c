"""Trains a drafter head twice from one seed, with onehead and with plain PyTorch, and compares the curves.

The data are hidden states of a small trained target and drafter (golden/sample.safetensors: H = 256, V = 8,003, 96 blocks of
16 rows); the head is a two-layer network on the draft hidden states, the loss KL(q || p) with DFlash's decay. Plain PyTorch
projects for the loss and once more for the accepted streak, as trainers do.

    python3 train.py [--steps 300] [--blocks 8] [--plot curves.svg]

Exit status 1 where the curves part by more than the bounds below.
"""

import argparse
import pathlib
import sys
import time

import safetensors_file
import svg_plot
import torch
import torch.nn.functional as F

import onehead

SAMPLE = pathlib.Path(__file__).resolve().parents[3] / "golden" / "sample.safetensors"
BLOCK = 16

# Both runs compute in float32, in different orders of summation: losses of the first steps differ by about 1e-7 of
# themselves. Adam divides small gradients by their own size, so that training multiplies the difference; two orders of
# magnitude are left for that. A streak moves where a row's two best tokens are that close: 1 in 100 blocks by one token.
LOSS_BOUND = 5e-5
STREAK_BOUND = 0.01


class Head(torch.nn.Module):
    """D + W2 gelu(W1 D): starts as the identity."""

    def __init__(self, hidden):
        super().__init__()
        self.up = torch.nn.Linear(hidden, 2 * hidden)
        self.down = torch.nn.Linear(2 * hidden, hidden)
        torch.nn.init.zeros_(self.down.weight)
        torch.nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def with_onehead(draft, batch, weight):
    loss, metrics = onehead.draft_loss(draft, weight, batch["target"], loss_mask=batch["mask"], metrics="one-read")
    return loss, metrics.streak_sums[1] / metrics.blocks, metrics.streak_sums[4] / metrics.blocks


def with_pytorch(draft, batch, weight):
    t = batch["target"] @ weight.T
    q = t.log_softmax(-1)
    kl = F.kl_div((draft @ weight.T).log_softmax(-1), q, reduction="none", log_target=True).sum(-1)
    slot = torch.arange(len(draft)) % BLOCK
    w = batch["mask"] * torch.exp(-(slot - 1) / 10.0) * (slot >= 1)
    loss = (w * kl).sum() / w.sum()
    with torch.no_grad():
        ids = (draft @ weight.T).topk(4).indices
        y = t.argmax(-1)
        supervised = ((batch["mask"] > 0) & (slot >= 1)).reshape(-1, BLOCK)[:, 1:]
        streaks = []
        for k in (1, 4):
            hit = (ids[:, :k] == y[:, None]).any(1).reshape(-1, BLOCK)[:, 1:] & supervised
            streaks.append(hit.double().cumprod(1).sum(1)[supervised.any(1)].mean())
    return loss, *streaks


def batches(tensors, steps, blocks, seed):
    g = torch.Generator().manual_seed(seed)
    all_blocks = tensors["draft_hidden"].shape[0] // BLOCK
    target = tensors["target_hidden"].float()
    for _ in range(steps):
        chosen = torch.randperm(all_blocks, generator=g)[:blocks]
        rows = (chosen[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        yield {
            "draft": tensors["draft_hidden"][rows].float(),
            "target": target[tensors["target_row"][rows].long()],
            "mask": tensors["loss_mask"][rows].float(),
        }


def train(objective, tensors, steps, blocks, seed=0):
    """[steps] of (loss, streak, streak of top-4), and seconds."""
    torch.manual_seed(seed)
    weight = tensors["lm_head"].float()
    head = Head(weight.shape[1])
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-4)
    curve, start = [], time.perf_counter()
    for batch in batches(tensors, steps, blocks, seed):
        loss, *streaks = objective(head(batch["draft"]), batch, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append((float(loss), *map(float, streaks)))
    return curve, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=8, help="blocks of 16 rows in a step (default 8)")
    parser.add_argument("--plot", default="curves.svg")
    options = parser.parse_args()
    tensors = safetensors_file.load(SAMPLE)
    ours, our_seconds = train(with_onehead, tensors, options.steps, options.blocks)
    plain, plain_seconds = train(with_pytorch, tensors, options.steps, options.blocks)

    loss_gap = max(abs(a[0] / b[0] - 1) for a, b in zip(ours, plain))
    streak_gap = [abs(sum(a[i] for a in ours) - sum(b[i] for b in plain)) / options.steps for i in (1, 2)]
    last = options.steps // 10 or 1
    mean = [[sum(c[i] for c in curve[-last:]) / last for i in range(3)] for curve in (ours, plain)]
    for name, figures, seconds in (("onehead", mean[0], our_seconds), ("PyTorch", mean[1], plain_seconds)):
        print(f"{name}: loss {figures[0]:.5f}, streak {figures[1]:.3f}, top-4 {figures[2]:.3f} (last {last}); {seconds:.1f} s")
    print(f"start: loss {ours[0][0]:.5f}, streak {ours[0][1]:.3f}, top-4 {ours[0][2]:.3f}")
    print(f"largest loss difference {loss_gap:.1e} (bound {LOSS_BOUND:.0e}), mean streaks {streak_gap} (bound {STREAK_BOUND})")
    svg_plot.write(
        options.plot,
        [
            ("loss", [("onehead", [a[0] for a in ours]), ("PyTorch", [b[0] for b in plain])]),
            ("top-4 streak", [("onehead", [a[2] for a in ours]), ("PyTorch", [b[2] for b in plain])]),
        ],
    )
    print(f"curves: {options.plot}")
    return 0 if loss_gap <= LOSS_BOUND and max(streak_gap) <= STREAK_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
