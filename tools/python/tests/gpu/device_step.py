"""Steps on a CUDA device, and what they give in float64: plain PyTorch on the same device, gradients by autograd."""

import contextlib
import math

import torch

import reference

BLOCK, FIRST = 16, 1
#: Half a unit in the last place, relative: what rounding to a dtype adds at most.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
#: And what it adds to numbers below a dtype's normal ones: half of their spacing.
SUBNORMAL = {torch.bfloat16: 0.0, torch.float16: 2.0**-25, torch.float32: 0.0}


def batch(rows=256, hidden=192, vocab=5003, dtype=torch.bfloat16, noise=0.5, seed=0, device="cuda"):
    """(draft_hidden, the other arguments of draft_loss): logits of a standard deviation of 3, the mask on the host."""
    g = torch.Generator(device=device).manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, device=device)

    target = draw(rows, hidden)
    draft = (target + noise * draw(rows, hidden)).to(dtype)
    mask = ((torch.rand(rows, generator=g, device=device) < 0.8) * (0.5 + torch.rand(rows, generator=g, device=device))).cpu()
    weight = (draw(vocab, hidden) * 3 / hidden**0.5).to(dtype)
    return draft, dict(lm_head=weight, target_hidden=target.to(dtype), loss_mask=mask)


class Exact:
    """A step in float64: loss, gradients, per-row figures, and what bounds on its gradient are made of."""

    def __init__(self, draft, lm_head, target_hidden=None, loss_mask=None, labels=None, terms=None, gamma=10.0, **options):
        device, rows = draft.device, draft.shape[0]
        terms = terms or {"kl": 1.0}
        self.draft = draft.detach().double().requires_grad_()
        self.head = lm_head.detach().double().requires_grad_()
        self.logits = self.draft @ self.head.T
        self.logits.retain_grad()
        t = None if target_hidden is None else target_hidden.double() @ self.head.detach().T
        slot = torch.arange(rows, device=device) % BLOCK
        mask = torch.ones(rows, device=device) if loss_mask is None else loss_mask.to(device)
        supervised = (mask > 0) & (slot >= FIRST)
        if labels is not None:
            labels = labels.to(device)
            supervised &= (labels >= 0) & (labels < lm_head.shape[0])
        y = t.argmax(-1) if labels is None else torch.where(supervised, labels, torch.zeros_like(labels)).long()
        row, self.entropy, self.alpha = reference.row_terms(self.logits, t, y, **options)
        self.weight = mask.double() * torch.exp(-(slot - FIRST) / gamma) * supervised
        self.n = self.weight.sum()
        total = sum(factor * row[name] for name, factor in terms.items())
        self.loss = (self.weight * torch.where(supervised, total, torch.zeros_like(total))).sum() / self.n
        self.loss.backward()
        self.supervised, self.y, self.target_logits = supervised, y, t

    def rank_and_gap(self):
        """Rank of y, and how far y's logit is from the nearest other one."""
        z = self.logits.detach()
        z_y = z.gather(1, self.y[:, None])
        away = (z - z_y).abs().scatter(1, self.y[:, None], math.inf)
        return (z > z_y).sum(1), away.min(1).values

    def grad_bound(self, rounding, logit_error=0.0, subnormal=0.0):
        """[T, H]: how far dD may be off when the gradient tile, which has neither weights nor 1/N yet, is rounded relatively
        by `rounding` and at least by `subnormal`, and logits of draft and target are off by at most `logit_error`, [T, 1] or
        a number. A probability moves by the factor exp(2 error), so
        p - q by less than 2.5 (p + q) error for errors below 0.1; each column is then weighed by |W|."""
        dz = self.logits.grad.abs() * rounding + (self.weight / self.n)[:, None] * subnormal
        if not isinstance(logit_error, float) or logit_error:
            p, q = self.logits.detach().softmax(-1), self.target_logits.softmax(-1)
            dz = dz + (self.weight / self.n)[:, None] * 2.5 * logit_error * (p + q)
        return dz @ self.head.detach().abs()


@contextlib.contextmanager
def no_synchronisation():
    """PyTorch raises when an operation of its own waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def held_back(stream, seconds=1.0):
    """The stream is busy with nothing for about `seconds`; a fault where the block took longer: it waited."""
    stream.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(seconds * 2e9))  # cycles, at close to 2 GHz
        yield
        assert not stream.query(), "the call waited for the device"
