"""The objective once more, one number at a time, in pure Python: a witness for the oracle.

It goes another way wherever there is one. Probabilities come from exp, logarithms from
probabilities, and the gradient from the linear form with per-row coefficients

    dz_v = p_v (c0 + c1 log p_v + c2 log q_v + c3 log m_v + c4 [p_v <= q_v])
           - cy [v = y] - cq q_v - ck

so it is right only for moderate, finite logits.
"""

from math import exp, fsum, log, tanh


def project(hidden, head):
    return [[fsum(h * w for h, w in zip(row, column)) for column in head] for row in hidden]


def softmax(z):
    total = fsum(exp(x) for x in z)
    return [exp(x) / total for x in z]


def transformed(raw, options, bias):
    """One logit and its derivative."""
    form = options.transform
    x = form.scale * raw + bias
    if form.softcap is None:
        return x, form.scale
    z = form.softcap * tanh(x / form.softcap)
    return z, form.scale * (1 - (z / form.softcap) ** 2)


def term(name, z, p, q, y, options):
    """The loss and the coefficients that are not 0."""
    tokens = range(len(p))
    alpha = fsum(min(p[v], q[v]) for v in tokens)
    kl = fsum(q[v] * log(q[v] / p[v]) for v in tokens)
    share = fsum(p[v] for v in tokens if p[v] <= q[v])
    entropy = -fsum(p[v] * log(p[v]) for v in tokens)
    if name == "ce":
        smooth, beta = options.label_smoothing, options.z_loss
        lse = log(fsum(exp(x) for x in z))
        loss = (-(1 - smooth) * log(p[y]) - smooth * fsum(map(log, p)) / len(p)
                + beta * lse ** 2)
        return loss, {"c0": 1 + 2 * beta * lse, "cy": 1 - smooth, "ck": smooth / len(p)}
    if name == "kl":
        return kl, {"c0": 1, "cq": 1}
    if name == "rkl":
        loss = fsum(p[v] * log(p[v] / q[v]) for v in tokens)
        return loss, {"c0": -loss, "c1": 1, "c2": -1}
    if name == "jsd":
        m = [(p[v] + q[v]) / 2 for v in tokens]
        p_to_m = fsum(p[v] * log(p[v] / m[v]) for v in tokens)
        q_to_m = fsum(q[v] * log(q[v] / m[v]) for v in tokens)
        return (p_to_m + q_to_m) / 2, {"c0": -p_to_m / 2, "c1": 0.5, "c3": -0.5}
    if name == "tv":
        return 1 - alpha, {"c0": share, "c4": -1}
    if name == "nla":
        return -log(alpha), {"c0": share / alpha, "c4": -1 / alpha}
    if name == "lk_hybrid":
        blend = exp(-options.eta * alpha)
        return (blend * kl + (1 - blend) * (1 - alpha),
                {"c0": blend + (1 - blend) * share, "cq": blend, "c4": -(1 - blend)})
    right = z.index(max(z)) == y
    return (entropy, {"c0": -entropy, "c1": -1}) if right else (0.0, {})


def answers(batch, options):
    """loss, loss_num, terms, draft gradient and metrics of an oracle batch with a target."""
    size, count = options.block_size, len(batch.draft_hidden)
    width = options.transform.vocab_valid or len(batch.lm_head)
    head = [list(row) for row in batch.lm_head][:width]
    bias = [0.0] * width if batch.bias is None else list(batch.bias)[:width]
    draft_raw = project(batch.draft_hidden.tolist(), head)
    target_raw = project(batch.target_hidden.tolist(), head)
    rows = []
    for r in range(count):
        z, slope = zip(*(transformed(draft_raw[r][v], options, bias[v]) for v in range(width)))
        t = [transformed(target_raw[batch.target_row[r]][v], options, bias[v])[0]
             for v in range(width)]
        p, q = softmax(z), softmax(t)
        y = t.index(max(t)) if options.labels == "target" else int(batch.label[r])
        on = batch.loss_mask[r] > 0 and r % size >= options.first_slot
        on = on and (options.labels == "target" or 0 <= y < len(batch.lm_head))
        row = {"on": on, "p": p, "alpha": fsum(map(min, p, q)), "y": y}
        if on:
            row["rank"] = sum(z[v] > z[y] or (z[v] == z[y] and v < y) for v in range(width))
            row["loss"], row["terms"], dz = 0.0, {}, [0.0] * width
            for name, factor in options.terms.items():
                loss, c = term(name, z, p, q, y, options)
                row["terms"][name] = loss
                row["loss"] += factor * loss
                for v in range(width):
                    m = (p[v] + q[v]) / 2
                    dz[v] += factor * (
                        p[v] * (c.get("c0", 0) + c.get("c1", 0) * log(p[v])
                                + c.get("c2", 0) * log(q[v]) + c.get("c3", 0) * log(m)
                                + c.get("c4", 0) * (p[v] <= q[v]))
                        - c.get("cy", 0) * (v == y) - c.get("cq", 0) * q[v] - c.get("ck", 0))
            row["dx"] = [d * s for d, s in zip(dz, slope)]
        rows.append(row)

    weight = weights(batch, rows, options)
    kind, number = options.norm
    norm = {"weights": fsum(weight), "none": 1.0, "number": number,
            "count": fsum(batch.loss_mask[r] for r in range(count) if rows[r]["on"])}[kind]
    on = [r for r in range(count) if rows[r]["on"]]
    grad = [[0.0] * batch.draft_hidden.shape[1] for _ in range(count)]
    for r in on:
        for h in range(len(grad[r])):
            grad[r][h] = options.upstream * weight[r] / norm * fsum(
                rows[r]["dx"][v] * head[v][h] for v in range(width))
    loss_num = fsum(weight[r] * rows[r]["loss"] for r in on)
    return {
        "loss": loss_num / norm,
        "terms": {name: fsum(weight[r] * rows[r]["terms"][name] for r in on) / fsum(weight)
                  for name in options.terms},
        "draft_grad": grad,
        "alpha": fsum(rows[r]["alpha"] for r in on) / len(on),
        **block_figures(rows, options),
    }


def weights(batch, rows, options):
    kind, parameter = options.decay
    size, result = options.block_size, []
    for r, row in enumerate(rows):
        step = r % size - options.first_slot
        if not row["on"]:
            result.append(0.0)
            continue
        if kind == "dpace":
            start, decay, product = r - r % size, 0.0, 1.0
            for i in range(start, start + size):
                if rows[i]["on"]:
                    product *= (1 - parameter) * rows[i]["p"][rows[i]["y"]] + parameter
                    decay += product if i >= r else 0.0
        else:
            decay = {"none": lambda: 1.0, "exp": lambda: exp(-step / parameter),
                     "power": lambda: parameter ** step}[kind]()
        result.append(float(batch.loss_mask[r]) * decay)
    return result


def block_figures(rows, options):
    size, first = options.block_size, options.first_slot
    blocks = [rows[at:at + size] for at in range(0, len(rows), size)]
    blocks = [block for block in blocks if any(row["on"] for row in block)]
    streak_sum = {k: 0 for k in options.topk}
    tau = 0.0
    for block in blocks:
        for k in options.topk:
            for row in block[first:]:
                if row["on"] and row["rank"] < k:
                    streak_sum[k] += 1
                elif row["on"] or options.gap == "stop":
                    break
        product = 1.0
        for row in block[first:]:
            product *= row["alpha"] if row["on"] else 0.0
            tau += product
    eal, product = 0.0, 1.0
    for slot in range(first, size):
        here = [block[slot] for block in blocks if block[slot]["on"]]
        product *= sum(row["rank"] < 1 for row in here) / len(here) if here else 0.0
        eal += product
    return {"streak_sum": streak_sum, "tau": tau / len(blocks), "eal": eal}
