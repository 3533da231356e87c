"""Tests of the oracle itself.

    python3 test_oracle.py [FOLDER]

Gradients against central differences, a small case against `scalar_oracle.py`, and inputs that
broke code of this kind with answers worked out by hand. FOLDER with an expected.json: compares
with that too. Prints a summary line; exit 1 when a test fails.
"""

import sys
import traceback
from dataclasses import replace
from math import exp, log

import numpy as np

import cases
import drawing
import generate
import options as command
import oracle
import scalar_oracle
import terms
import verify_expected

ONE_ROW = cases.ONE_ROW_BLOCKS
INF = np.inf


# ---- what the tests are made of --------------------------------------------------------------


def small_batch(seed, *, rows=8, vocab=11, hidden=4, mask=None):
    """Random float64 numbers; nothing about them is special."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = {
        "draft_hidden": rng.normal(size=(rows, hidden)),
        "target_hidden": rng.normal(size=(rows + 2, hidden)),
        "target_row": rng.permutation(rows + 2)[:rows],
        "lm_head": rng.normal(size=(vocab, hidden)),
        "label": rng.integers(0, vocab, rows),
        "loss_mask": np.array([1, 1, 1, 0, 0.5, 1, 2, 1]) if mask is None else mask,
    }
    near = tensors["target_hidden"][tensors["target_row"]]
    tensors["draft_hidden"] = near + 0.5 * tensors["draft_hidden"]
    best = np.argmax(tensors["draft_hidden"] @ tensors["lm_head"].T, axis=1)
    tensors["label"][1::2] = best[1::2]  # some labels the drafter gets right
    return tensors


def run(tensors, args, **changes):
    chosen = command.parse_args(args, "target_hidden" in tensors)
    return oracle.Oracle(tensors).run(replace(chosen, **changes))


def run_logits(draft, target=None, label=None, bias=None, args=""):
    tensors = drawing.from_logits(draft, target, label, bias)
    return run(tensors, f"{ONE_ROW} {args}")


def close(got, want, tolerance=1e-12, what=""):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.allclose(got, want, rtol=tolerance, atol=tolerance), f"{what} {got} != {want}"


def refuses(tensors, args):
    try:
        run(tensors, args)
    except ValueError:
        return
    raise AssertionError(f"not refused: {args}")


# ---- gradients -------------------------------------------------------------------------------


def held_constant_loss(tensors, args):
    """The loss as a function of draft hidden states and head whose derivative is the gradient:
    weights, normaliser, lk_hybrid's blend and the target's logits are those of `tensors`."""
    chosen = command.parse_args(args)
    base = oracle.Oracle(tensors).run(chosen)
    factor = base.weight * chosen.upstream / base.summary["loss_den"]
    batch = oracle.batch_from(tensors)
    supervised = oracle.supervised_rows(batch, chosen)
    blend = np.zeros(len(factor))
    logits = oracle.Logits(batch, supervised, chosen)
    blend[supervised] = np.exp(-chosen.eta * logits.rows.alpha)
    target_head = tensors.get("target_lm_head", tensors["lm_head"])

    def loss(draft_hidden, lm_head):
        moved = {**tensors, "draft_hidden": draft_hidden, "lm_head": lm_head,
                 "target_lm_head": target_head}
        moved_oracle = oracle.Oracle(moved)

        def row_loss(which):
            return moved_oracle.run(replace(chosen, terms=which)).row_loss

        plain = {name: by for name, by in chosen.terms.items() if name != "lk_hybrid"}
        total = row_loss(plain) if plain else 0.0
        if "lk_hybrid" in chosen.terms:
            mixed = blend * row_loss({"kl": 1.0}) + (1 - blend) * row_loss({"tv": 1.0})
            total = total + chosen.terms["lk_hybrid"] * mixed
        return (factor * total).sum()

    return loss


def central_difference(function, x, step=1e-5):
    slope = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


def check_gradient(args, tensors=None):
    """The error of a central difference is step^2 = 1e-10 times a third derivative, plus
    rounding of about 1e-16 / step = 1e-11."""
    tensors = tensors or small_batch(1)
    answers = run(tensors, args, head_grad=True)
    loss = held_constant_loss(tensors, args)
    draft, head = tensors["draft_hidden"], tensors["lm_head"]
    assert np.abs(answers.draft_grad).max() > 1e-4, "nothing to see"
    close(answers.draft_grad, central_difference(lambda d: loss(d, head), draft), 1e-7, args)
    close(answers.head_grad, central_difference(lambda w: loss(draft, w), head), 1e-7, args)


def test_gradient_of_every_term():
    for name in command.TERMS:
        for labels in ("target", "given"):
            check_gradient(f"--terms {name}=1.3 --labels {labels} --block-size 4")


def test_gradient_of_ce_options():
    for more in ("--label-smoothing 0.2", "--z-loss 0.1", "--label-smoothing 0.1 --z-loss 0.01"):
        check_gradient(f"--terms ce=1 --labels given --block-size 4 {more}")


def test_gradient_through_every_transform():
    bias = np.linspace(-1, 1, 11)
    with_inf = bias.copy()
    with_inf[4] = -INF
    for more in ("--scale 0.3", "--softcap 2", "--vocab-valid 8",
                 "--scale 0.5 --softcap 1.5 --vocab-valid 9"):
        for extra in ({}, {"bias": bias}, {"bias": with_inf}):
            tensors = {**small_batch(2), **extra}
            tensors["label"] = np.array([0, 1, 2, 3, 5, 6, 7, 0])
            check_gradient(f"--terms {cases.ALL_TERMS} --labels given --block-size 4 {more}",
                           tensors)


def test_gradient_with_every_weight_and_normaliser():
    for decay in ("none", "exp:3", "power:0.6", "dpace:0.4"):
        for norm in ("weights", "count", "none", "7.5"):
            check_gradient(f"--terms kl=0.4,tv=0.6 --decay {decay} --norm {norm}"
                           " --block-size 4 --upstream 0.37")


def test_gradient_with_the_targets_own_head():
    rng = np.random.Generator(np.random.PCG64(3))
    tensors = small_batch(3)
    tensors["target_hidden"] = rng.normal(size=(10, 3))
    tensors["target_lm_head"] = rng.normal(size=(11, 3))
    check_gradient("--terms kl=1,jsd=1 --block-size 4", tensors)


def test_gradient_check_can_fail():
    right = terms.TERM["kl"]
    terms.TERM["kl"] = lambda rows, y, chosen: (right(rows, y, chosen)[0], rows.p - 0.999 * rows.q)
    try:
        check_gradient("--terms kl=1 --block-size 4")
    except AssertionError:
        return
    finally:
        terms.TERM["kl"] = right
    raise AssertionError("a wrong gradient passed")


# ---- the witness -----------------------------------------------------------------------------


def test_agrees_with_the_scalar_witness():
    every = [f"--terms {name}=0.7" for name in command.TERMS]
    every += [f"--terms {cases.ALL_TERMS} --labels given --gap {gap} --decay {decay} --norm {norm}"
              for gap in ("stop", "skip") for decay in ("none", "exp:4", "power:0.7", "dpace:0.3")
              for norm in ("weights", "count", "none", "3")]
    every += ["--terms ce=1 --label-smoothing 0.2 --z-loss 0.3 --first-slot 0",
              f"--terms {cases.ALL_TERMS} --scale 0.7 --softcap 3 --vocab-valid 10"]
    for seed, args in enumerate(every):
        args += " --block-size 4 --topk 1,2,4"
        tensors = {**small_batch(100 + seed), "bias": np.linspace(0.5, -0.5, 11)}
        tensors["label"][5] = -100
        chosen = command.parse_args(args)
        got = oracle.Oracle(tensors).run(chosen)
        want = scalar_oracle.answers(oracle.batch_from(tensors), chosen)
        close(got.draft_grad, want["draft_grad"], 1e-12, args)
        for key in ("loss", "alpha", "tau", "eal"):
            close(got.summary[key], want[key], 1e-12, f"{args} {key}")
        for name, value in want["terms"].items():
            close(got.summary["terms"][name], value, 1e-12, f"{args} {name}")
        for k, value in want["streak_sum"].items():
            assert got.summary["topk"][str(k)]["streak_sum"] == value, args


# ---- inputs that broke code of this kind -----------------------------------------------------


def test_one_finite_logit_far_out():
    z = np.full((1, 24832), 0.0)
    bias = np.full(24832, -INF)
    bias[5000] = 10
    tensors = {"draft_hidden": z[:, :1], "lm_head": np.zeros((24832, 1)), "bias": bias,
               "label": np.array([5000])}
    got = run(tensors, f"--terms ce=1 {ONE_ROW}")
    assert got.summary["loss"] == 0 and got.summary["nonfinite_rows"] == 0
    assert got.topk_id[0].tolist() == [5000, 0, 1, 2, 3, 4, 5, 6]
    assert np.all(got.topk_logprob[0, 1:] == -INF)


def test_minus_inf_column_of_both():
    got = run_logits([[1, 2, 0]], [[2, 1, 0]], bias=[0, 0, -INF])
    close(got.summary["loss"], 0.46211715726000973)
    assert got.draft_grad[0, 2] == 0


def test_underflowed_mixture_has_no_divergence():
    got = run_logits([[0, -110]], [[0, -110]], args="--terms kl=1,rkl=1,jsd=1,tv=1")
    assert got.summary["terms"] == {"kl": 0, "rkl": 0, "jsd": 0, "tv": 0}
    assert got.summary["alpha"] == 1


def test_nothing_supervised():
    tensors = small_batch(4, mask=np.zeros(8))
    empty = {name: tensor if name in ("lm_head", "target_hidden") else tensor[:0]
             for name, tensor in tensors.items()}
    for batch in (tensors, empty):
        for decay in ("exp:10", "dpace:0.5"):
            for norm in ("weights", "count", "none", "0"):
                got = run(batch, f"--terms {cases.ALL_TERMS} --decay {decay} --norm {norm}"
                          " --block-size 4", head_grad=True)
                assert got.summary["loss"] == 0 and got.summary["supervised"] == 0
                assert not got.draft_grad.any() and not got.head_grad.any()
                assert None not in got.summary.values()


def test_small_loss_and_small_gradient():
    z = np.full((1, 129), -20.0)
    z[0, 77] = -10
    close(run_logits(z, label=[77]).summary["loss"], log(1 + 128 * exp(-10)), 1e-13)
    close(run_logits([[8, 0]], label=[0]).draft_grad[0, 0], -1 / (1 + exp(8)), 1e-13)


def test_upstream_scales_the_gradient_only():
    one = run(small_batch(5), "--block-size 4", head_grad=True)
    other = run(small_batch(5), "--block-size 4 --upstream 0.37", head_grad=True)
    close(other.draft_grad, 0.37 * one.draft_grad)
    close(other.head_grad, 0.37 * one.head_grad)
    assert other.summary["loss"] == one.summary["loss"]


def test_parts_with_a_common_normaliser_add_up():
    tensors = small_batch(6)
    whole = run(tensors, "--block-size 4 --norm 8")
    first = {**tensors, "loss_mask": tensors["loss_mask"] * ([1] * 4 + [0] * 4)}
    second = {**tensors, "loss_mask": tensors["loss_mask"] * ([0] * 4 + [1] * 4)}
    parts = [run(part, "--block-size 4 --norm 8") for part in (first, second)]
    close(sum(part.summary["loss"] for part in parts), whole.summary["loss"])
    close(sum(part.draft_grad for part in parts), whole.draft_grad)


def test_drafter_that_is_the_target():
    tensors = small_batch(7)
    tensors["draft_hidden"] = tensors["target_hidden"][tensors["target_row"]].copy()
    got = run(tensors, "--terms kl=1,rkl=1,jsd=1,tv=1 --block-size 4")
    assert max(got.summary["terms"].values()) < 1e-15
    assert np.abs(got.draft_grad).max() < 1e-15
    close(got.summary["alpha"], 1)


def test_close_probabilities_do_not_cancel():
    z, t = ([[log(p / (1 - p)), 0]] for p in (0.9012, 0.9))
    close(run_logits(z, t).draft_grad[0, 0], 0.0012, 1e-13)


def test_labels_out_of_range_are_unsupervised():
    tensors = small_batch(8, vocab=19, mask=np.ones(8))
    without = {**tensors, "loss_mask": np.array([1, 0, 1, 0, 1, 1, 0, 0.0])}
    tensors["label"] = tensors["label"].copy()
    tensors["label"][[1, 3, 6, 7]] = [19, -1, -100, 2 ** 40]
    args = "--terms ce=1 --labels given --block-size 4"
    got, want = run(tensors, args), run(without, args)
    assert got.summary == want.summary and np.array_equal(got.draft_grad, want.draft_grad)


def test_ties_go_to_the_lowest_id():
    got = run_logits([[3, 2, 3, 2, 1, 1]] * 6, label=range(6), args="--topk 2,6")
    assert got.topk_id[0].tolist() == [0, 2, 1, 3, 4, 5]
    assert got.rank.tolist() == [0, 2, 1, 3, 4, 5]
    got = run_logits([[0, 0, 0, 1]], [[1, 5, 5, 0]])
    assert got.label[0] == 1 and got.rank[0] == 2


def test_topk_beyond_the_vocabulary():
    got = run_logits([[1, 3, 2, 9]], label=[2], args="--vocab-valid 3 --topk 1,5")
    assert got.topk_id[0].tolist() == [1, 2, 0, -1, -1]
    assert np.all(got.topk_logprob[0, 3:] == -INF)


def test_a_nan_row_changes_no_other():
    args = f"--terms {cases.ALL_TERMS} --block-size 4 --topk 1,2"
    tensors = small_batch(9, mask=np.ones(8))
    clean = run(tensors, args, head_grad=True)
    for value in (np.nan, INF):
        broken = {**tensors, "draft_hidden": tensors["draft_hidden"].copy()}
        broken["draft_hidden"][2] = value
        got = run(broken, args, head_grad=True)
        others = np.arange(8) != 2
        assert got.summary["nonfinite_rows"] == 1 and got.summary["supervised"] == 6
        assert got.summary["weight_sum"] == clean.summary["weight_sum"]
        assert np.array_equal(got.row_loss[others], clean.row_loss[others])
        close(got.draft_grad[others], clean.draft_grad[others], 1e-15)
        assert not got.draft_grad[2].any() and got.row_loss[2] == 0
        assert np.array_equal(got.topk_id[others], clean.topk_id[others])
        assert got.argmax[2] == got.rank[2] == got.label[2] == -1
        assert np.all(got.topk_id[2] == -1) and np.all(got.topk_logprob[2] == -INF)
        assert not got.topk_logprob[0].any()  # unsupervised
        assert sum(got.summary["slot_count"]) == 5
        close(got.summary["loss_num"], clean.summary["loss_num"]
              - clean.weight[2] * clean.row_loss[2])
        assert np.isfinite(got.head_grad).all()


def test_a_nan_row_that_is_masked_leaves_no_trace():
    tensors = small_batch(10)
    broken = {**tensors, "draft_hidden": tensors["draft_hidden"].copy()}
    broken["draft_hidden"][[0, 3]] = np.nan  # slot 0 and a mask of 0
    args = "--block-size 4"
    want, got = (run(batch, args, head_grad=True) for batch in (tensors, broken))
    assert got.summary == want.summary
    assert np.array_equal(got.draft_grad, want.draft_grad)
    assert np.array_equal(got.head_grad, want.head_grad)


def test_infinite_losses_set_a_row_aside():
    # A second bias is the only way to give one model a -inf that the other has not.
    tensors = drawing.from_logits([[1, 2, 3], [3, 1, 1]], [[1, 2, 0], [2, 0, 1]])
    without_2 = {**tensors, "bias": np.array([0, 0, -INF]), "target_bias": np.zeros(3)}
    target_without_2 = {**tensors, "target_bias": np.array([0, 0, -INF])}
    for batch, term, infinite in ((without_2, "kl", 2), (without_2, "rkl", 0),
                                  (without_2, "lk_hybrid", 2), (without_2, "tv", 0),
                                  (target_without_2, "kl", 0), (target_without_2, "rkl", 2),
                                  (target_without_2, "jsd", 0), (without_2, "jsd", 0),
                                  (target_without_2, "nla", 0), (without_2, "cap", 0)):
        got = run(batch, f"--terms {term}=1 {ONE_ROW}")
        assert got.summary["nonfinite_rows"] == infinite, term
        assert np.isfinite(got.draft_grad).all() and np.isfinite(got.summary["loss"])
    got = run_logits([[1, 2, 3]], label=[0], bias=[0, -INF, 0], args="--label-smoothing 0.1")
    assert got.summary["nonfinite_rows"] == 1 and got.summary["loss"] == 0


def test_a_row_without_finite_logits():
    got = run_logits([[1, 2], [3, 4]], label=[0, 1], bias=[-INF, -INF])
    assert got.summary["nonfinite_rows"] == 2 and got.summary["loss"] == 0


def test_softcap_does_not_hide_plus_infinity():
    got = run_logits([[1, 2]], label=[0], bias=[INF, 0], args="--softcap 30")
    assert got.summary["nonfinite_rows"] == 1 and not got.draft_grad.any()


def test_offsets_keep_the_loss():
    for offset in (1e6, -1e6):
        got = run_logits([[0, 0, 0]], label=[0], bias=[offset] * 3)
        close(got.summary["loss"], log(3), 1e-13)


def test_underflowed_label_keeps_its_logarithm():
    close(run_logits([[0, 110]], label=[0]).summary["loss"], 110)
    close(run_logits([[0, 5000]], label=[0]).summary["loss"], 5000)


def test_rows_must_fill_blocks_and_masks_be_weights():
    tensors = small_batch(11)
    refuses(tensors, "--block-size 16")
    refuses({**tensors, "loss_mask": np.array([1, 1, 1, 1, 1, 1, 1, -1])}, "--block-size 4")
    refuses({**tensors, "loss_mask": np.array([1, 1, 1, 1, 1, 1, 1, np.nan])}, "--block-size 4")
    refuses({**tensors, "target_row": np.full(8, 10)}, "--block-size 4")
    alone = {name: tensors[name] for name in ("draft_hidden", "lm_head", "label")}
    refuses(alone, "--block-size 4 --labels target")
    refuses(alone, "--block-size 4 --terms kl=1")
    run(alone, "--block-size 4")


def test_softcap_saturates_without_overflow():
    got = run_logits([[9984, 5, -9984]], label=[1], args="--softcap 30")
    close(got.summary["loss"], 30 - 30 * np.tanh(5 / 30)
          + log(1 + exp(30 * np.tanh(5 / 30) - 30) + exp(-60)), 1e-13)
    assert got.draft_grad[0, 0] == 0 and got.draft_grad[0, 2] == 0 and got.draft_grad[0, 1] < 0


def test_z_loss_and_smoothing_by_hand():
    got = run_logits([[1, 0]], label=[0], args="--label-smoothing 0.2 --z-loss 0.5")
    lse = log(exp(1) + 1)
    close(got.summary["loss"], 0.8 * (lse - 1) + 0.1 * ((lse - 1) + lse) + 0.5 * lse ** 2)


# ---- metrics and weights by hand -------------------------------------------------------------


def blocks_of_hits(pattern):
    """Blocks from strings: + a hit, - a miss, . unsupervised; the anchor slot comes first."""
    slots = "".join("." + block for block in pattern)
    tensors = drawing.from_logits([[1, 0]] * len(slots), label=[int(c == "-") for c in slots])
    tensors["loss_mask"] = np.array([float(c != ".") for c in slots])
    return tensors, f"--block-size {len(pattern[0]) + 1} --decay none --topk 1,2"


def test_streaks_and_gaps():
    tensors, args = blocks_of_hits(["++.+", "+-++", ".+++", "....", "++++"])
    stop = run(tensors, args + " --gap stop").summary
    skip = run(tensors, args + " --gap skip").summary
    assert stop["blocks"] == 4
    assert stop["topk"]["1"]["streak_sum"] == 2 + 1 + 0 + 4
    assert skip["topk"]["1"]["streak_sum"] == 3 + 1 + 3 + 4
    assert stop["slot_hits"] == [0, 3, 3, 3, 4] and stop["slot_count"] == [0, 3, 4, 3, 4]
    close(stop["eal"], 1 + 0.75 + 0.75 + 0.75)


def test_eal_ends_at_an_empty_slot():
    tensors, args = blocks_of_hits(["+.+", "+.+"])
    assert run(tensors, args).summary["eal"] == 1


def test_tau_ends_at_a_hole_whatever_the_gap():
    tensors, args = blocks_of_hits(["++.+"])
    tensors["target_hidden"] = tensors["draft_hidden"]
    for gap in ("stop", "skip"):
        close(run(tensors, f"{args} --labels given --gap {gap}").summary["tau"], 2)


def test_dpace_by_hand():
    confidence = np.array([[np.nan, 0.5, np.nan, 0.25]])
    supervised = np.array([[False, True, False, True]])
    decay = oracle.dpace_decay(confidence, supervised, 0.5)
    close(decay, [[0, 0.75 + 0.75 * 0.625, 0, 0.75 * 0.625]])


# ---- the comparators -------------------------------------------------------------------------


def test_comparators_can_fail():
    want = {"a": [1, 2.0], "b": {"c": 3}}
    for got in ({"a": [1, 2.0 + 1e-8], "b": {"c": 3}}, {"a": [1, 2.0], "b": {"c": 4}},
                {"a": [1], "b": {"c": 3}}, {"a": [1, 2.0]}):
        errors = verify_expected.differences("", got, want)
        assert max(error for _, error in errors) > verify_expected.TOLERANCE
        assert list(generate.json_differences("", got, want))
    assert not list(generate.json_differences("", want, want))


def main(arguments):
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    failed = 0
    for name, test in tests:
        try:
            test()
        except Exception:
            failed += 1
            print(f"FAILED {name}")
            traceback.print_exc()
    compared = ""
    if arguments:
        count, worst, off = verify_expected.compare(arguments[0])
        failed += bool(off)
        compared = f"; {count} option sets of expected.json, worst relative error {worst:.1e}"
        print("".join(f"OFF {line}\n" for line in off), end="")
    print(f"{len(tests)} tests, {failed} failed{compared}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
