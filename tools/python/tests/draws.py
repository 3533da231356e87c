"""Random batches whose comparisons are not decided by rounding."""

import torch


def batch(rows=64, hidden=24, vocab=67, target_rows=None, seed=0, sharpness=2.5):
    """float32 tensors by draft_loss's names. The drafter resembles its target, so that ranks and streaks are not all 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    s = rows if target_rows is None else target_rows
    target = draw(s, hidden)
    target_row = None if target_rows is None else torch.randint(0, s, (rows,), generator=g)
    seen = target if target_row is None else target[target_row]
    draft, weight = seen + 0.6 * draw(rows, hidden), draw(vocab, hidden) * sharpness / hidden**0.5
    labels = torch.randint(-2, vocab + 2, (rows,), generator=g)
    right = torch.rand(rows, generator=g) < 0.5
    return {
        "draft_hidden": draft,
        "lm_head": weight,
        "target_hidden": target,
        "target_row": target_row,
        "labels": torch.where(right, (draft @ weight.T).argmax(1), labels),
        "loss_mask": torch.rand(rows, generator=g) * (torch.rand(rows, generator=g) > 0.2),
    }
