"""The golden cases: what each covers, its options, and how its inputs are made.

A case is a function of a random generator and its own options that returns float64 tensors.
Its name is the file's name. Names are seeds too: adding a case changes no other.
"""

from dataclasses import dataclass

import numpy as np

from drawing import draw, from_logits

ONE_ROW_BLOCKS = "--block-size 1 --first-slot 0"
ALL_TERMS = "ce=0.2,kl=0.3,rkl=0.1,jsd=0.5,tv=0.7,nla=0.05,lk_hybrid=0.4,cap=0.02"
INF = np.inf
NAN = np.nan


@dataclass(frozen=True)
class Case:
    name: str
    args: str
    why: str
    make: object
    dtype: str  # of hidden states and weights
    head_grad: bool  # states dW
    logits: bool  # states raw logits
    tags: tuple


CASES = []


def case(args, why, *, dtype="bf16", head_grad=False, logits=False, tags=()):
    def register(function):
        CASES.append(Case(function.__name__, args, why, function, dtype, head_grad, logits, tags))
        return function
    return register


def drawn(name, args, why, *, dtype="bf16", head_grad=False, logits=False, tags=(), **shape):
    """A case that is a plain draw."""
    def make(rng, args):
        return draw(rng, args, dtype=dtype, **shape)
    CASES.append(Case(name, args, why, make, dtype, head_grad, logits, tags))


# ---- vocabulary sizes and dtypes -------------------------------------------------------------

drawn("v1_kl", "", "V = 1: every probability is 1, every gradient 0", vocab=1)
drawn("v1_ce", "--terms ce=1 --labels given", "V = 1 with given labels", vocab=1, head_grad=True)
drawn("v2_kl", "--topk 1,2", "V = 2", vocab=2, logits=True)
drawn("v7_ce", "--terms ce=1 --labels given --topk 1,2,4", "V = 7, odd and under a vector",
      vocab=7, logits=True)
drawn("v19_kl", "", "V = 19, the defaults", vocab=19, logits=True)
drawn("v129_kl", "", "V = 129: one column past a multiple of 128", vocab=129, logits=True)
drawn("v300_ce", "--terms ce=1 --labels given --decay exp:7", "V = 300", vocab=300)
drawn("v1031_kl", "--terms kl=0.7,ce=0.3", "V = 1,031, a prime", vocab=1031)
drawn("v8003_kl", "", "V = 8,003 with a small hidden size", vocab=8003, hidden=4)
drawn("f16_kl", "", "f16 inputs with more digits than bf16", vocab=129, dtype="f16")
drawn("f32_kl", "", "f32 inputs with more digits than TF32", vocab=129, dtype="f32", logits=True)
drawn("f32_ce_head", "--terms ce=1 --labels given", "f32 inputs, trainable head", vocab=65,
      dtype="f32", head_grad=True)
drawn("f16_mix", f"--terms {ALL_TERMS} --labels given", "f16 inputs, every term", vocab=129,
      dtype="f16")

# ---- ties ------------------------------------------------------------------------------------

drawn("ties_kl", "", "small integers: logits tie, also for the target's argmax; lowest id wins",
      vocab=19, hidden=8, integers=True, logits=True, tags=("ties",))
drawn("ties_ce", "--terms ce=1 --labels given --topk 1,2,4,8,16",
      "small integers: ties at every K", vocab=300, hidden=6, integers=True, tags=("ties",))
drawn("ties_cap", "--terms cap=1 --labels given", "cap where the argmax is one of a tie",
      vocab=7, hidden=3, integers=True, head_grad=True, tags=("ties",))


@case(f"--terms ce=1 --labels given --topk 1,2,4 {ONE_ROW_BLOCKS}",
      "z = [3,2,3,2,1,1]: top-2 is 0, 2; the rank of token 3 is 3", logits=True, tags=("ties",))
def tied_logits(rng, args):
    return from_logits(np.tile([3, 2, 3, 2, 1, 1], (6, 1)), label=np.arange(6))


# ---- extreme logits --------------------------------------------------------------------------


@case(f"--terms ce=1 {ONE_ROW_BLOCKS}", "all -inf but token 5,000: ce = 0",
      tags=("minus_inf",))
def one_finite_far_column(rng, args):
    bias = np.full(8003, -INF)
    bias[5000] = 10
    tensors = draw(rng, args, rows=4, vocab=8003, hidden=4, bias=bias, target=False, density=1)
    tensors["label"][:] = 5000
    return tensors


@case(f"{ONE_ROW_BLOCKS} --topk 1,8", "one finite logit: top-8 goes on with the lowest ids",
      tags=("minus_inf",))
def one_finite_kl(rng, args):
    bias = np.full(19, -INF)
    bias[11] = 1
    return draw(rng, args, rows=4, bias=bias, density=1)


@case(ONE_ROW_BLOCKS + " --topk 1,2", "z = [1,2,-inf], t = [2,1,-inf]: kl = 0.462117",
      head_grad=True, tags=("minus_inf",))
def minus_inf_column(rng, args):
    return from_logits([[1, 2, 0]], [[2, 1, 0]], bias=[0, 0, -INF])


@case("--softcap 20", "-inf bias on some columns, under a softcap", head_grad=True,
      tags=("minus_inf",))
def minus_inf_bias_kl(rng, args):
    bias = np.zeros(129)
    bias[rng.permutation(129)[:40]] = -INF
    return draw(rng, args, vocab=129, bias=bias)


@case("--terms rkl=0.5,jsd=1,tv=0.7,nla=0.2,lk_hybrid=0.3,cap=0.1",
      "-inf bias on some columns, terms that take logarithms of mixtures", tags=("minus_inf",))
def minus_inf_bias_terms(rng, args):
    bias = np.zeros(19)
    bias[[0, 3, 18]] = -INF
    return draw(rng, args, bias=bias)


@case(f"--terms ce=1 {ONE_ROW_BLOCKS}", "V = 129, all -20 but y's -10: ce = log(1 + 128 e^-10)")
def small_loss(rng, args):
    z = np.full((1, 129), -20.0)
    z[0, 77] = -10
    return from_logits(z, label=[77])


@case(f"--terms ce=1 {ONE_ROW_BLOCKS} --topk 1,2", "z = [8,0], y = 0: dz_0 = -3.354e-4",
      head_grad=True, logits=True)
def small_gradient(rng, args):
    return from_logits([[8, 0]], label=[0])


@case(f"--terms ce=1 {ONE_ROW_BLOCKS} --topk 1,2", "z = [0,110], y = 0: ce = 110")
def underflowed_label(rng, args):
    return from_logits([[0, 110]], label=[0])


@case(f"--terms ce=1 {ONE_ROW_BLOCKS} --topk 1,2", "z = 1e6 + [0,0,0]: ce = log 3",
      tags=("offset", "ties"))
def offset_ce(rng, args):
    return from_logits([[0, 0, 0]], label=[0], bias=[1e6, 1e6, 1e6])


@case("", "logits around 1e6, small integers apart", tags=("offset", "ties"))
def offset_kl(rng, args):
    return draw(rng, args, vocab=129, hidden=8, integers=True, bias=np.full(129, 1e6))


@case(f"--terms ce=0.5,jsd=1,lk_hybrid=1 --labels given {ONE_ROW_BLOCKS}",
      "logits around -1e6, small integers apart", tags=("offset", "ties"))
def offset_terms(rng, args):
    return draw(rng, args, hidden=8, integers=True, bias=np.full(19, -1e6))


@case(f"--terms kl=1,rkl=1,jsd=1,tv=1 {ONE_ROW_BLOCKS} --topk 1,2",
      "z = t = [0,-110]: every divergence is 0 and alpha 1", tags=("cancels",))
def underflowed_mixture(rng, args):
    return from_logits([[0, -110]], [[0, -110]])


@case(f"{ONE_ROW_BLOCKS} --topk 1", "p = .9012, q = .9000: p - q = .0012, not a rounded 0",
      dtype="f32", tags=("cancels",))
def close_probabilities(rng, args):
    logits = [[np.float32(np.log(p / (1 - p))), 0] for p in (0.9012, 0.9)]
    return from_logits(logits[:1], logits[1:])


@case(f"--terms nla=1 {ONE_ROW_BLOCKS} --topk 1,2",
      "nla where alpha is under its floor (loss 11.51, gradient 0) and where it is not")
def nla_floor(rng, args):
    z = [[30, 0, 0, 0], [2, 0, 1, -1], [0, 25, 0, 0]]
    t = [[0, 30, 0, 0], [1, 0, 3, -2], [25, 0, 1, 0]]
    return from_logits(z, t)


# ---- logit transform -------------------------------------------------------------------------

drawn("softcap_kl", "--softcap 5", "softcap, the target's too", vocab=129, head_grad=True)
drawn("scale_kl", "--scale 0.1", "scale 0.1: its factor in the gradient", vocab=129, spread=20,
      head_grad=True)
drawn("vocab_valid_beyond_topk", "--vocab-valid 5", "more top-K than valid columns", vocab=7)


@case(f"--terms ce=1 --softcap 30 {ONE_ROW_BLOCKS} --topk 1,2,4",
      "softcap 30 with raw logits near 1e4: saturated, tied, gradient 0 there",
      head_grad=True, logits=True, tags=("ties",))
def softcap_saturated(rng, args):
    z = [[9984, 5, -9984, 20, 9984], [3, -7, 9984, 11, 30], [3, -7, 2, 11, 30]]
    return from_logits(z, label=[4, 3, 0])


@case("--terms ce=1 --labels given --scale 0.5 --softcap 6", "scale, bias and softcap together",
      head_grad=True)
def scale_bias_softcap(rng, args):
    bias = np.round(rng.normal(size=129) * 64) / 64
    return draw(rng, args, vocab=129, spread=5, bias=bias)


@case("--terms tv=0.5,rkl=0.1,jsd=1,cap=0.1 --scale 0.25 --softcap 8 --vocab-valid 290",
      "every part of the transform under the other terms", head_grad=True)
def transform_terms(rng, args):
    bias = np.round(rng.normal(size=300) * 64) / 64
    return draw(rng, args, vocab=300, spread=10, bias=bias)


@case("--vocab-valid 120", "padding columns that would win everything", head_grad=True)
def padding_kl(rng, args):
    tensors = draw(rng, args, vocab=129)
    tensors["lm_head"][120:] = 3.5
    return tensors


@case("--terms ce=1 --labels given --label-smoothing 0.1 --vocab-valid 120",
      "padding columns do not count in label smoothing", head_grad=True)
def padding_smoothing(rng, args):
    tensors = draw(rng, args, vocab=129)
    tensors["lm_head"][120:] = -3
    return tensors


# ---- rows that are not finite ----------------------------------------------------------------


@case("", "NaN and infinities in rows that are not supervised leave no trace", head_grad=True,
      tags=("nonfinite",))
def masked_rows_not_finite(rng, args):
    tensors = draw(rng, args, rows=48, vocab=65)
    tensors["loss_mask"][[3, 20, 21]] = 0
    tensors["draft_hidden"][[3, 20], :] = NAN
    tensors["draft_hidden"][21, 4] = INF
    tensors["draft_hidden"][32, :] = -INF  # slot 0
    return tensors


@case("", "one all-NaN row: reported, kept in N, and nothing else changes", head_grad=True,
      tags=("nonfinite",))
def nan_row(rng, args):
    tensors = draw(rng, args, vocab=65)
    tensors["loss_mask"][4:8] = 1
    tensors["draft_hidden"][5, :] = NAN
    return tensors


@case("--terms ce=1 --labels given --gap skip --norm count --decay none",
      "one all-NaN row under skip: the streak steps over it", tags=("nonfinite",))
def nan_row_skip(rng, args):
    tensors = draw(rng, args, vocab=19)
    tensors["loss_mask"][:] = 1
    tensors["draft_hidden"][[2, 19], :] = NAN
    return tensors


@case("", "a target row that is NaN takes every draft row with it that predicts from it",
      tags=("nonfinite",))
def nan_target_row(rng, args):
    tensors = draw(rng, args, vocab=19)
    tensors["loss_mask"][5] = 1
    tensors["target_hidden"][tensors["target_row"][5], :] = NAN
    return tensors


@case("--terms ce=1 --labels given", "a hidden state of +inf; one whose logits are all -inf",
      head_grad=True, tags=("nonfinite",))
def infinite_rows(rng, args):
    tensors = draw(rng, args, vocab=19)
    tensors["lm_head"][:, 0] = np.abs(tensors["lm_head"][:, 0]) + 0.5
    tensors["draft_hidden"][:, 0] = tensors["target_hidden"][:, 0] = 0
    tensors["loss_mask"][[7, 20]] = 1
    tensors["draft_hidden"][7, 3] = INF
    tensors["draft_hidden"][20, 0] = -INF
    return tensors


@case(f"--terms {ALL_TERMS} --decay dpace:0.5", "NaN rows under dpace: a factor of 1, weight kept",
      head_grad=True, tags=("nonfinite",))
def nan_row_dpace(rng, args):
    tensors = draw(rng, args, vocab=19)
    tensors["loss_mask"][4:8] = 1
    tensors["draft_hidden"][[5, 17], :] = NAN
    return tensors


@case("--terms rkl=1", "q_v = 0 < p_v: rkl is infinite on every row, loss 0 and gradient 0",
      tags=("nonfinite", "minus_inf"))
def rkl_infinite(rng, args):
    return target_without_a_token(rng, args)


@case("--terms kl=1,jsd=0.5,tv=0.5", "q_v = 0 < p_v: the other divergences are finite",
      tags=("minus_inf",))
def target_excludes_token(rng, args):
    return target_without_a_token(rng, args)


def target_without_a_token(rng, args):
    """The target's own head gives token 4 a logit of -inf on every row."""
    tensors = draw(rng, args, target_hidden_size=8)
    tensors["target_hidden"][:, 0] = 1
    tensors["target_lm_head"][:, 0] = 0
    tensors["target_lm_head"][4, 0] = -INF
    return tensors


@case("--terms ce=1 --labels given --label-smoothing 0.1",
      "label smoothing with a -inf logit: infinite on every row", tags=("nonfinite", "minus_inf"))
def smoothing_infinite(rng, args):
    bias = np.zeros(19)
    bias[6] = -INF
    tensors = draw(rng, args, bias=bias)
    tensors["label"][tensors["label"] == 6] = 7
    return tensors


# ---- supervision -----------------------------------------------------------------------------


@case("", "no row is supervised: loss 0, gradient exactly 0, every metric finite",
      head_grad=True, tags=("unsupervised",))
def all_unsupervised(rng, args):
    return draw(rng, args, density=0)


@case("--terms ce=1,jsd=1 --decay dpace:0.5 --norm count", "no row is supervised, dpace",
      tags=("unsupervised",))
def all_unsupervised_dpace(rng, args):
    return draw(rng, args, density=0)


@case("", "T = 0", head_grad=True, tags=("unsupervised",))
def no_rows(rng, args):
    tensors = draw(rng, args)
    return {name: tensor if name in ("lm_head", "target_hidden") else tensor[:0]
            for name, tensor in tensors.items()}


@case("", "a block without a supervised row does not count in the streak's mean")
def block_unsupervised(rng, args):
    tensors = draw(rng, args, rows=48)
    tensors["loss_mask"][16:32] = 0
    return tensors


@case("--chunk 32", "only rows of the second of three chunks", head_grad=True)
def second_of_three_chunks(rng, args):
    tensors = draw(rng, args, rows=96)
    tensors["loss_mask"][:32] = tensors["loss_mask"][64:] = 0
    return tensors


@case("--terms ce=1 --labels given", "labels of 22, -1, -100 and 2^33 with V = 19: unsupervised",
      head_grad=True)
def labels_out_of_range(rng, args):
    tensors = draw(rng, args, density=1)
    tensors["label"] = tensors["label"].astype(np.int64)
    tensors["label"][[2, 9, 13, 20, 25]] = [22, -1, -100, 19, 2 ** 33 + 3]
    return tensors


@case("", "labels out of range do not matter when the target judges")
def labels_unused(rng, args):
    tensors = draw(rng, args)
    tensors["label"][:] = -100
    return tensors


@case("--norm count --gap skip", "float masks: weights, and counts as sums of them",
      head_grad=True)
def float_mask(rng, args):
    tensors = draw(rng, args)
    tensors["loss_mask"] = rng.choice([0, 0.25, 0.5, 1, 2], 32).astype(np.float32)
    return tensors


@case("--norm none", "a bool mask, i64 labels and i64 target rows")
def bool_mask(rng, args):
    tensors = draw(rng, args)
    tensors["loss_mask"] = tensors["loss_mask"].astype(bool)
    tensors["label"] = tensors["label"].astype(np.int64)
    tensors["target_row"] = tensors["target_row"].astype(np.int64)
    return tensors


@case("", "hidden states and a head, nothing else")
def fewest_tensors(rng, args):
    tensors = draw(rng, args, identity=True, density=1)
    del tensors["label"], tensors["loss_mask"]
    return tensors


drawn("no_target", "", "without a target: ce and given labels by default", vocab=129, target=False,
      head_grad=True, tags=("no_target",))


# ---- target rows -----------------------------------------------------------------------------


@case("", "target rows shared and in random order; out of range on unsupervised rows")
def target_rows_random(rng, args):
    tensors = draw(rng, args, rows=48, vocab=65, identity=True)
    order = rng.permutation(48)
    tensors["target_hidden"] = tensors["target_hidden"][order]
    tensors["target_row"] = np.argsort(order).astype(np.int32)
    for copy, original in ((1, 2), (17, 40), (18, 40), (33, 7)):
        tensors["target_row"][copy] = tensors["target_row"][original]
        tensors["draft_hidden"][copy] = tensors["draft_hidden"][original]
    tensors["loss_mask"][[4, 22]] = 0
    tensors["target_row"][[0, 4, 16, 22]] = [-7, 48, 10 ** 6, -1]
    return tensors


@case("", "drafter = target: loss 0 and gradient 0", head_grad=True, tags=("cancels",))
def drafter_is_target(rng, args):
    return drafter_as_target(rng, args)


@case("--terms rkl=1,jsd=1,tv=1,lk_hybrid=1,nla=1", "drafter = target under the other terms",
      tags=("cancels",))
def drafter_is_target_terms(rng, args):
    return drafter_as_target(rng, args)


def drafter_as_target(rng, args):
    return draw(rng, args, vocab=65, noise=0)


drawn("target_head_kl", "", "the target has its own head and hidden size", vocab=65,
      target_hidden_size=24, head_grad=True, logits=True)
drawn("target_head_terms", "--terms rkl=0.3,jsd=1,lk_hybrid=0.5 --labels target",
      "the target's own head under the other terms", vocab=129, target_hidden_size=8)

# ---- blocks, slots, gaps ---------------------------------------------------------------------

drawn("first_slot_0", "--first-slot 0 --decay exp:4", "the anchor slot is supervised", vocab=65)
drawn("block_1", f"{ONE_ROW_BLOCKS} --norm count", "blocks of one row", rows=30, vocab=65)
drawn("block_5", "--block-size 5 --first-slot 2", "blocks of 5, first slot 2", rows=35, vocab=65)
drawn("block_17", "--block-size 17 --decay power:0.8", "blocks of 17", rows=51, vocab=65)
drawn("gap_stop", "--gap stop --topk 1,2,4,8", "holes end a streak", rows=96, noise=0.2,
      density=0.7)
drawn("gap_skip", "--gap skip --topk 1,2,4,8", "holes are stepped over", rows=96, noise=0.2,
      density=0.7)

# ---- weights and normaliser ------------------------------------------------------------------

drawn("upstream_kl", "--upstream 0.37", "an upstream gradient other than 1", vocab=65,
      head_grad=True)
drawn("power_count", "--decay power:0.7 --norm count", "power decay, N is the count", vocab=65)
drawn("no_decay_sum", "--decay none --norm none --terms ce=0.5,kl=0.5", "a plain sum", vocab=65)
drawn("norm_number", "--terms ce=1 --labels given --norm 8", "N from the caller", vocab=65,
      head_grad=True)
drawn("dpace_weights", "--terms ce=1 --decay dpace:0.5 --labels given",
      "dpace, N is known after the last block", rows=48, vocab=65, head_grad=True)
drawn("dpace_count", "--terms ce=1 --decay dpace:0.5 --norm count", "dpace, N is the count",
      rows=48, vocab=65)
drawn("dpace_sum", "--terms kl=1 --decay dpace:0.3 --norm none --first-slot 0",
      "dpace, a plain sum with holes", rows=48, vocab=65, density=0.6)
drawn("dpace_number", "--terms lk_hybrid=1 --decay dpace:0.9 --norm 20.5 --upstream 0.37",
      "dpace, N from the caller, an upstream gradient", rows=48, vocab=65, head_grad=True)


@case("--terms kl=0.6,tv=0.4 --decay dpace:0.3 --block-size 5 --gap skip",
      "dpace with float masks and blocks of 5")
def dpace_float_mask(rng, args):
    tensors = draw(rng, args, rows=35)
    tensors["loss_mask"] = rng.choice([0, 0.25, 0.5, 1, 2], 35).astype(np.float32)
    return tensors


# ---- terms -----------------------------------------------------------------------------------

drawn("smoothing", "--terms ce=1 --labels given --label-smoothing 0.1", "label smoothing",
      vocab=129, head_grad=True)
drawn("z_loss", "--terms ce=1 --labels given --z-loss 1e-2", "z-loss", vocab=129, head_grad=True)
drawn("smoothing_z_loss", "--terms ce=1 --label-smoothing 0.2 --z-loss 1e-3 --softcap 10",
      "label smoothing and z-loss under a softcap, the target judges", vocab=65)
drawn("rkl", "--terms rkl=1", "reverse KL alone", vocab=129)
drawn("jsd", "--terms jsd=1", "Jensen-Shannon alone", vocab=300)
drawn("tv", "--terms tv=1", "total variation alone", vocab=129, head_grad=True)
drawn("tv_v7", "--terms tv=1 --labels given", "total variation, V = 7", vocab=7)
drawn("nla", "--terms nla=1", "negative log acceptance alone", vocab=65)
drawn("lk_hybrid", "--terms lk_hybrid=1", "the blend of kl and tv alone", vocab=129)
drawn("lk_hybrid_eta", "--terms lk_hybrid=1 --eta 1", "the blend with another eta", vocab=19)
drawn("cap", "--terms cap=1", "the entropy cap alone", vocab=129)
drawn("kl_cap", "--terms kl=1,cap=0.1", "kl with the entropy cap", vocab=300, head_grad=True)
drawn("all_terms", f"--terms {ALL_TERMS} --labels given --norm count --gap skip"
      " --topk 1,2,4,8,16", "every term at once", vocab=300, head_grad=True)
drawn("jsd_v1031", "--terms jsd=1,ce=0.1 --labels given", "a mix, V = 1,031", vocab=1031)
drawn("rkl_v8003", "--terms rkl=1,lk_hybrid=0.5", "a mix, V = 8,003", vocab=8003, hidden=4,
      rows=16)
