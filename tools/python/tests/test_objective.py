"""Loss, gradients and figures against plain PyTorch in float64, for every term, decay, normaliser and option."""

import math

import pytest
import torch

import draws
import onehead
import reference

TERMS = ("ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "cap")
COUNTS = ("rows", "supervised", "blocks", "slot_hits", "slot_count")


def both(batch, **options):
    """Loss, gradients and figures of the package and of the reference on the same float32 values."""
    bias = options.pop("bias", None)
    arguments = {k: v for k, v in batch.items() if k not in ("draft_hidden", "lm_head")}
    leaves = [batch["draft_hidden"], batch["lm_head"]] + ([] if bias is None else [bias])
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    extra = {} if bias is None else {"bias": ours[2]}
    loss, metrics = onehead.draft_loss(*ours[:2], **arguments, rows=True, **extra, **options)
    loss.backward()

    theirs = [leaf.double().requires_grad_() for leaf in leaves]
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in arguments.items()}
    options = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in options.items()}
    for name in ("policy", "chunk", "memory", "tile", "metrics"):
        options.pop(name, None)
    extra = {} if bias is None else {"bias": theirs[2]}
    right, figures = reference.draft_loss(
        theirs[0], theirs[1], wide.pop("target_hidden", None), **rename(wide), **extra, **options
    )
    right.backward()
    return (loss, [o.grad for o in ours], metrics), (right, [t.grad for t in theirs], figures)


def rename(arguments):
    return {k: v for k, v in arguments.items() if v is not None}


def agree(batch, **options):
    (loss, grads, metrics), (right, expected, figures) = both(batch, **options)
    relative = reference.relative_bound(figures["size"])
    factor = sum(abs(f) for f in options["terms"].values()) * max(1.0, figures["size"])
    share = figures["weight_sum"] / figures["loss_den"] if figures["loss_den"] else 0.0
    moved = relative * factor * share
    assert float(loss) == pytest.approx(figures["loss"], abs=moved, rel=reference.ROUNDING)
    for grad, exact in zip(grads, expected):
        assert exact.abs().max() > 0
        assert float((grad.double() - exact).norm()) <= relative * float(exact.norm())
    # Row by row: what a row's gradient is a sum of may cancel, so against the size of its summands.
    reach = figures["weight"] / figures["loss_den"] * factor * abs(options.get("scale") or 1.0)
    worst = (grads[0].double() - expected[0]).norm(dim=1)
    assert (worst <= relative * reach * float(batch["lm_head"].norm(dim=1).max())).all()
    ratios = metrics.ratios()
    for name in COUNTS:
        assert ratios[name] == figures[name], name
    for k, top in figures["topk"].items():
        assert ratios["topk"][k]["hits"] == top["hits"] and ratios["topk"][k]["streak_sum"] == top["streak_sum"]
        assert ratios["topk"][k]["rate"] == pytest.approx(top["rate"], abs=1e-15)
        assert ratios["topk"][k]["streak"] == pytest.approx(top["streak"], abs=1e-15)
    for name in ("weight_sum", "loss_num", "loss_den", "draft_entropy", "draft_top1", "eal"):
        assert ratios[name] == pytest.approx(figures[name], abs=moved * max(1.0, figures["loss_den"]), rel=1e-12), name
    for name in ("alpha", "tau", "target_top1"):
        if name in figures:
            assert ratios[name] == pytest.approx(figures[name], abs=relative * max(1.0, figures[name])), name
        else:
            assert ratios[name] is None
    for name in options["terms"]:
        assert ratios["terms"][name] == pytest.approx(figures["terms"][name], abs=relative * figures["size"])
    supervised = figures["weight"] > 0
    assert torch.equal(metrics.rows.rank.long()[supervised], figures["rank"][supervised])
    assert torch.equal(metrics.rows.argmax.long()[supervised], figures["argmax"][supervised])
    assert torch.equal(metrics.rows.label.long()[supervised], figures["label"][supervised])
    assert torch.allclose(metrics.rows.row_loss.double(), figures["row_loss"], atol=relative * factor, rtol=reference.ROUNDING)


def target_judged(seed=0, **kinds):
    batch = draws.batch(seed=seed, **kinds)
    return dict(batch, labels=None)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("labels", ["target", "given"])
def test_each_term_and_its_gradients(term, labels):
    batch = draws.batch(seed=1)
    agree(batch if labels == "given" else dict(batch, labels=None), terms={term: 0.7})


def test_all_terms_together_with_shared_target_rows():
    batch = draws.batch(seed=2, target_rows=23)
    agree(batch, terms={term: 0.1 * (i + 1) for i, term in enumerate(TERMS)}, eta=1.5, label_smoothing=0.1, z_loss=1e-3)


DECAYS = [("none",), ("exp", 4.0), ("power", 0.8), ("dpace", 0.3)]


@pytest.mark.parametrize("decay", DECAYS, ids=lambda d: d[0])
@pytest.mark.parametrize("norm", ["weights", "count", "none", 37.5, torch.tensor(37.5)], ids=str)
def test_each_decay_and_normaliser(decay, norm):
    agree(target_judged(seed=3), terms={"kl": 1.0, "ce": 0.5}, decay=decay, norm=norm)


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 8},
        {"first_slot": 0},
        {"block_size": 4, "first_slot": 3},
        {"block_size": 1, "first_slot": 0},
        {"gap": "skip"},
        {"topk": (2,)},
        {"topk": (64,)},
        {"label_smoothing": 0.2},
        {"z_loss": 0.01},
        {"softcap": 5.0},
        {"scale": 0.5},
        {"scale": -1.5, "softcap": 3.0},
        {"softcap": 4.0, "target_softcap": 0.0, "target_scale": 0.7},
        {"vocab_valid": 60},
        {"policy": "recompute"},
        {"policy": "naive"},
        {"policy": "auto"},
        {"chunk": 16},
        {"policy": "recompute", "chunk": 16, "memory": "64K"},
    ],
    ids=str,
)
def test_each_option(options):
    given = draws.batch(seed=4)
    given["labels"] = given["labels"].clamp(max=options.get("vocab_valid", 1 << 20) - 1)
    agree(given, terms={"kl": 1.0, "ce": 1.0, "cap": 0.1}, **options)


@pytest.mark.parametrize("options", [{}, {"scale": 0.5, "softcap": 6.0}, {"vocab_valid": 50}], ids=str)
def test_the_bias_gets_its_gradient(options):
    batch = target_judged(seed=5)
    g = torch.Generator().manual_seed(9)
    agree(batch, terms={"kl": 1.0, "ce": 0.3}, bias=torch.randn(67, generator=g), **options)


def test_a_target_with_a_head_of_its_own():
    batch = target_judged(seed=6)
    g = torch.Generator().manual_seed(10)
    batch["target_hidden"] = torch.randn(64, 40, generator=g)
    batch["target_lm_head"] = torch.randn(67, 40, generator=g) / 3
    batch["target_bias"] = torch.randn(67, generator=g)
    agree(batch, terms={"kl": 1.0, "tv": 0.5})


def test_without_a_target_the_default_is_cross_entropy_on_labels():
    batch = draws.batch(seed=7)
    batch = dict(batch, target_hidden=None, target_row=None)
    agree({k: v for k, v in batch.items() if v is not None}, terms={"ce": 1.0})
    loss, metrics = onehead.draft_loss(batch["draft_hidden"], batch["lm_head"], labels=batch["labels"])
    assert list(metrics.ratios()["terms"]) == ["ce"] and math.isfinite(loss)


@pytest.mark.parametrize("mask", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_masks_of_every_dtype(mask):
    batch = target_judged(seed=8)
    batch["loss_mask"] = (batch["loss_mask"] > 0).to(mask)
    agree(batch, terms={"kl": 1.0})


@pytest.mark.parametrize("norm", ["weights", "count", 0.0, torch.tensor(0.0)], ids=str)
def test_nothing_supervised_is_loss_and_gradient_of_exactly_zero(norm):
    batch = target_judged(seed=8)
    draft = batch["draft_hidden"].requires_grad_()
    if isinstance(norm, str):
        batch["loss_mask"] = torch.zeros(64)
    loss, metrics = onehead.draft_loss(**batch, norm=norm)
    loss.backward()
    assert float(loss) == 0 and not draft.grad.any()
    assert all(v is None or isinstance(v, (dict, list)) or math.isfinite(v) for v in metrics.ratios().values())


def test_no_rows_at_all():
    batch = target_judged()
    draft = torch.empty(0, 24, requires_grad=True)
    loss, metrics = onehead.draft_loss(draft, batch["lm_head"], torch.empty(0, 24))
    loss.backward()
    assert float(loss) == 0 and draft.grad.shape == (0, 24) and metrics.ratios()["rows"] == 0
