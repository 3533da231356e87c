"""The options of `onehead run` that change numbers, as a value the oracle can read."""

import argparse
import shlex
from dataclasses import dataclass, field
from typing import Optional

TERMS = ("ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "cap")
NEEDS_TARGET = frozenset(("kl", "rkl", "jsd", "tv", "nla", "lk_hybrid"))

# Where and how the command runs; its answers are the same for all of them.
WITHOUT_EFFECT = ("--chunk", "--policy", "--tile", "--memory", "--threads", "--backend",
                  "--device", "--grad-dtype")


@dataclass(frozen=True)
class Transform:
    """z = softcap * tanh(x / softcap), x = scale * raw + bias; the bias lies in the batch."""

    scale: float = 1.0
    softcap: Optional[float] = None
    vocab_valid: Optional[int] = None  # columns from here on are padding


@dataclass(frozen=True)
class Options:
    terms: dict = field(default_factory=lambda: {"kl": 1.0})
    labels: str = "target"  # or "given"
    decay: tuple = ("exp", 10.0)  # none, exp, power, dpace
    norm: tuple = ("weights", None)  # weights, count, none, number
    first_slot: int = 1
    block_size: int = 16
    topk: tuple = (1, 4, 8)
    gap: str = "stop"  # or "skip"
    eta: float = 3.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    upstream: float = 1.0
    transform: Transform = Transform()
    target_transform: Optional[Transform] = None  # None: as the drafter's
    head_grad: bool = False


def parse_terms(text):
    terms = {}
    for part in text.split(","):
        name, _, factor = part.partition("=")
        if name not in TERMS:
            raise ValueError(f"unknown term {name}")
        terms[name] = float(factor or 1)
    return terms


def parse_decay(text):
    kind, _, parameter = text.partition(":")
    if kind not in ("none", "exp", "power", "dpace"):
        raise ValueError(f"unknown decay {kind}")
    return kind, float(parameter) if parameter else None


def parse_norm(text):
    if text in ("weights", "count", "none"):
        return text, None
    return "number", float(text)


def parse_args(text, has_target=True):
    """Options from a command line; the defaults depend on whether there is a target."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--terms", default="kl=1" if has_target else "ce=1")
    parser.add_argument("--labels", default="target" if has_target else "given",
                        choices=("target", "given"))
    parser.add_argument("--decay", default="exp:10")
    parser.add_argument("--norm", default="weights")
    parser.add_argument("--first-slot", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--topk", default="1,4,8")
    parser.add_argument("--gap", default="stop", choices=("stop", "skip"))
    parser.add_argument("--eta", type=float, default=3.0)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--z-loss", type=float, default=0.0)
    parser.add_argument("--upstream", type=float, default=1.0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--softcap", type=float)
    parser.add_argument("--vocab-valid", type=int)
    for name in WITHOUT_EFFECT:
        parser.add_argument(name)
    found = parser.parse_args(shlex.split(text))
    return Options(
        terms=parse_terms(found.terms), labels=found.labels, decay=parse_decay(found.decay),
        norm=parse_norm(found.norm), first_slot=found.first_slot, block_size=found.block_size,
        topk=tuple(sorted({int(k) for k in found.topk.split(",")})), gap=found.gap,
        eta=found.eta, label_smoothing=found.label_smoothing, z_loss=found.z_loss,
        upstream=found.upstream,
        transform=Transform(found.scale, found.softcap, found.vocab_valid))
