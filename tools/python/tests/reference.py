"""The objective in plain PyTorch, float64, logits materialised, gradients by autograd: what the package is compared with.

Written from the definitions; a row at a time where that is plainer."""

import math

import torch

ROUNDING = 2.0**-24  # of float32, half an ulp


def transform(raw, bias=None, scale=1.0, softcap=0.0, vocab_valid=None):
    x = scale * raw + (0 if bias is None else bias)
    z = softcap * torch.tanh(x / softcap) if softcap else x
    if vocab_valid is not None:
        z = z[:, :vocab_valid]
    return z


def row_terms(z, t, y, label_smoothing=0.0, z_loss=0.0, eta=3.0):
    """[T] of every term; t None: without a target. y [T] long, in range."""
    lp = z.log_softmax(-1)
    p, lse = lp.exp(), z.logsumexp(-1)
    entropy = -(p * lp).sum(-1)
    terms = {
        "ce": -(1 - label_smoothing) * lp.gather(1, y[:, None])[:, 0]
        - label_smoothing * lp.mean(-1)
        + z_loss * lse**2,
        "cap": torch.where(z.argmax(-1) == y, entropy, torch.zeros_like(entropy)),
    }
    if t is None:
        return terms, entropy, None
    lq = t.log_softmax(-1)
    q = lq.exp()
    lm = torch.logaddexp(lp, lq) - math.log(2)
    # [p <= q] belongs to p's side; autograd of minimum would split a tie, and there are none.
    alpha = torch.where(p <= q, p, q).sum(-1)
    kl = (q * (lq - lp)).sum(-1)
    hybrid = torch.exp(-eta * alpha).detach()
    terms.update(
        kl=kl,
        rkl=(p * (lp - lq)).sum(-1),
        jsd=((p * (lp - lm)).sum(-1) + (q * (lq - lm)).sum(-1)) / 2,
        tv=1 - alpha,
        nla=-torch.log(alpha.clamp(min=1e-5)),
        lk_hybrid=hybrid * kl + (1 - hybrid) * (1 - alpha),
    )
    return terms, entropy, alpha


def slot_weights(supervised, mask, p_y, block_size, first_slot, decay):
    """w [T]"""
    weights = torch.zeros_like(mask)
    kind = decay[0]
    for b in range(0, len(mask), block_size):
        if kind == "dpace":
            product, products = 1.0, []
            for s in range(block_size):
                product *= (1 - decay[1]) * float(p_y[b + s]) + decay[1] if supervised[b + s] else 1.0
                products.append(product if supervised[b + s] else 0.0)
        for s in range(first_slot, block_size):
            if not supervised[b + s]:
                continue
            k = s - first_slot
            factor = {
                "none": lambda: 1.0,
                "exp": lambda: math.exp(-k / decay[1]),
                "power": lambda: decay[1] ** k,
                "dpace": lambda: sum(products[s:]),
            }[kind]()
            weights[b + s] = mask[b + s] * factor
    return weights


def draft_loss(
    draft,
    weight,
    target=None,
    target_row=None,
    labels=None,
    loss_mask=None,
    *,
    terms,
    decay=("exp", 10.0),
    norm="weights",
    block_size=16,
    first_slot=1,
    topk=(1, 4, 8),
    gap="stop",
    target_lm_head=None,
    bias=None,
    target_bias=None,
    scale=1.0,
    softcap=0.0,
    target_scale=None,
    target_softcap=None,
    vocab_valid=None,
    label_smoothing=0.0,
    z_loss=0.0,
    eta=3.0,
):
    """(loss, figures): loss is differentiable by draft, weight and bias, which are float64 leaves."""
    rows, vocab = draft.shape[0], weight.shape[0]
    z = transform(draft @ weight.T, bias, scale, softcap, vocab_valid)
    t = None
    if target is not None:
        head = weight.detach() if target_lm_head is None else target_lm_head
        t_bias = target_bias if target_bias is not None else None if bias is None else bias.detach()
        t = transform(
            target @ head.T,
            None if t_bias is False else t_bias,
            scale if target_scale is None else target_scale,
            softcap if target_softcap is None else target_softcap,
            vocab_valid,
        )
        if target_row is not None:
            t = t[target_row]
    mask = torch.ones(rows, dtype=torch.float64) if loss_mask is None else loss_mask.double()
    slot = torch.arange(rows) % block_size
    supervised = (mask > 0) & (slot >= first_slot)
    if labels is not None:
        supervised &= (labels >= 0) & (labels < vocab)
        y = torch.where(supervised, labels, torch.zeros_like(labels)).long()
    else:
        y = t.argmax(-1)

    row, entropy, alpha = row_terms(z, t, y, label_smoothing, z_loss, eta)
    p = z.detach().softmax(-1)
    w = slot_weights(supervised, mask, p.gather(1, y[:, None])[:, 0], block_size, first_slot, decay)
    total = sum(factor * row[name] for name, factor in terms.items())
    n = {"weights": w.sum(), "count": mask[supervised].sum(), "none": torch.tensor(1.0, dtype=torch.float64)}.get(norm)
    n = torch.as_tensor(norm, dtype=torch.float64) if n is None else n
    num = (w * total)[supervised].sum()
    loss = num / n if n > 0 else num * 0

    size = max(float(x.detach()[x.isfinite()].abs().max()) if x.numel() else 0.0 for x in (z, z if t is None else t))
    figures = {
        "size": size,
        "rows": rows,
        "supervised": int(supervised.sum()),
        "weight_sum": float(w.sum()),
        "loss": float(loss),
        "loss_num": float(num),
        "loss_den": float(n),
        "terms": {k: float((w * row[k])[supervised].sum() / w.sum()) if w.sum() > 0 else 0.0 for k in terms},
        "draft_entropy": mean(entropy[supervised]),
        "draft_top1": mean(p.max(-1).values[supervised]),
        "row_loss": torch.where(supervised, total, torch.zeros_like(total)).detach(),
        "weight": w,
    }
    metrics(figures, z.detach(), y, supervised, block_size, first_slot, topk, gap)
    if t is not None:
        figures["target_top1"] = mean(t.softmax(-1).max(-1).values[supervised])
        figures["alpha"] = mean(alpha[supervised])
        a = torch.where(supervised, alpha.detach(), torch.zeros_like(alpha)).reshape(-1, block_size)[:, first_slot:]
        has = supervised.reshape(-1, block_size).any(1)
        figures["tau"] = float(a.cumprod(1).sum(1)[has].sum() / max(1, int(has.sum())))
    return loss, figures


def mean(values):
    return float(values.detach().mean()) if len(values) else 0.0


def metrics(figures, z, y, supervised, block_size, first_slot, topk, gap):
    z_y = z.gather(1, y[:, None])
    columns = torch.arange(z.shape[1])
    rank = (z > z_y).sum(1) + ((z == z_y) & (columns < y[:, None])).sum(1)
    figures["rank"], figures["label"], figures["argmax"] = rank, y, z.argmax(1)
    blocks = [b for b in range(0, len(y), block_size) if supervised[b : b + block_size].any()]
    figures["blocks"] = len(blocks)
    figures["topk"] = {}
    for k in topk:
        hit = (rank < k) & supervised
        streak = 0
        for b in blocks:
            for s in range(first_slot, block_size):
                if not supervised[b + s]:
                    if gap == "stop":
                        break
                    continue
                if not hit[b + s]:
                    break
                streak += 1
        hits = int(hit.sum())
        figures["topk"][str(k)] = {
            "hits": hits,
            "rate": hits / max(1, int(supervised.sum())),
            "streak_sum": streak,
            "streak": streak / max(1, len(blocks)),
        }
    top1 = ((rank == 0) & supervised).reshape(-1, block_size)
    figures["slot_hits"] = top1.sum(0).tolist()
    figures["slot_count"] = supervised.reshape(-1, block_size).sum(0).tolist()
    product, eal = 1.0, 0.0
    for s in range(first_slot, block_size):
        product *= figures["slot_hits"][s] / figures["slot_count"][s] if figures["slot_count"][s] else 0.0
        eal += product
    figures["eal"] = eal


def relative_bound(size):
    """How far float32 may be off, relative to the size of what is summed. Logits of at most `size` are rounded a few times
    at 2^-24 of themselves, and a probability or a logarithm moves by the logit's absolute error; exp, the sums and the
    result's own rounding add a few times 2^-24 more."""
    return ROUNDING * (8 + 2 * size)
