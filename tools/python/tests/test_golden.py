"""Every golden case through the package: options as the command's, answers in float64."""

import argparse
import json
import math
import shlex

import pytest
import torch
from conftest import ROOT

import onehead

numpy = pytest.importorskip("numpy")
GOLDEN = ROOT / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())
SAMPLE = json.loads((GOLDEN / "sample.json").read_text())["sample.safetensors"]


def load(path):
    """Tensors by name, bf16 as float32."""
    import safetensors_numpy  # golden's own reader

    return safetensors_numpy.read(path)[0]


def keywords(args):
    """draft_loss's arguments from the command's options."""
    found = {}
    parser = argparse.ArgumentParser(allow_abbrev=False)
    texts = ("terms", "labels", "decay", "norm", "gap", "tile", "policy", "memory")
    for name in texts:
        parser.add_argument("--" + name)
    for name in ("first-slot", "block-size", "vocab-valid", "chunk"):
        parser.add_argument("--" + name, type=int)
    for name in ("eta", "label-smoothing", "z-loss", "scale", "softcap", "upstream"):
        parser.add_argument("--" + name, type=float)
    parser.add_argument("--topk")
    for name, value in vars(parser.parse_args(shlex.split(args))).items():
        if value is not None:
            found[name] = value
    if "topk" in found:
        found["topk"] = [int(k) for k in found["topk"].split(",")]
    if "norm" in found and found["norm"] not in ("weights", "count", "none"):
        found["norm"] = float(found["norm"])
    return found


def close(ours, right, what):
    if isinstance(right, dict):
        assert ours.keys() == right.keys(), what
        for key in right:
            close(ours[key], right[key], f"{what}.{key}")
    elif isinstance(right, list):
        assert ours == right, what
    elif isinstance(right, int):
        assert ours == right, what
    else:
        # float32 rows against float64: logits of size 1e6 keep 0.06 of an absolute error.
        assert ours == pytest.approx(right, rel=2e-5, abs=2e-6), what


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "offset" not in case["tags"] and "cancels" not in case["tags"]])
def test_golden_case(name):
    check(load(GOLDEN / "cases" / name), CASES[name])


@pytest.mark.parametrize("name", ["default", "all"])
def test_sample(name):
    if name in SAMPLE:
        check(load(GOLDEN / "sample.safetensors"), SAMPLE[name])


def check(tensors, case):
    t = {k: torch.from_numpy(numpy.ascontiguousarray(v)) for k, v in tensors.items() if not k.startswith("expected.")}
    options = keywords(case["args"])
    upstream = options.pop("upstream", 1.0)
    labels = options.pop("labels", "target" if "target_hidden" in t else "given")
    draft, head = t["draft_hidden"].requires_grad_(), t["lm_head"]
    head.requires_grad_("head_grad" in case.get("tags", ()))
    loss, metrics = onehead.draft_loss(
        draft,
        head,
        t.get("target_hidden"),
        t.get("target_row"),
        t.get("label") if labels == "given" else None,
        t.get("loss_mask"),
        target_lm_head=t.get("target_lm_head"),
        bias=t.get("bias"),
        rows=True,
        **options,
    )
    (loss * upstream).backward()
    ratios = metrics.ratios()
    for key, right in case.items():
        if key in ratios and right is not None:
            close(ratios[key], right, key)
    wanted = torch.from_numpy(tensors["expected.draft_hidden.grad"]) if "expected.draft_hidden.grad" in tensors else None
    if wanted is None:
        assert float(draft.grad.double().norm()) == pytest.approx(case["grad_norm"], rel=1e-4)
        return
    # 16-bit inputs get 16-bit gradients: half an ulp of bf16 is 2^-9 of a value, of f16 2^-12.
    own = {torch.float32: 1e-5, torch.bfloat16: 2**-9 + 1e-5, torch.float16: 2**-11}[draft.dtype]
    error = float((draft.grad.double() - wanted).norm())
    # p - [v = y] of a sure drafter cancels: each is off by a rounding of 1, against a gradient that is far smaller.
    rounding = 2**-24 * float(head.detach()[head.isfinite()].abs().max()) * math.sqrt(max(1, wanted.numel()))
    assert error <= own * float(wanted.norm()) + rounding
    if "expected.lm_head.grad" in tensors:
        wanted = torch.from_numpy(tensors["expected.lm_head.grad"])
        assert float((head.grad.double() - wanted).norm()) <= own * float(wanted.norm()) + 1e-7
    for ours, key in (("label", "label"), ("argmax", "argmax"), ("rank", "rank"), ("topk_id", "topk_id")):
        if f"expected.{key}" in tensors and getattr(metrics.rows, ours) is not None:
            assert numpy.array_equal(getattr(metrics.rows, ours).numpy(), tensors[f"expected.{key}"]), key
