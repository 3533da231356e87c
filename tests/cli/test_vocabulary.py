"""Draft vocabularies that are a part of the target's, the target's own transform, and a trained bias, by the command."""
import os
import tempfile
import unittest

import numpy as np

from command import run, run_json, safetensors

T, H, VD, VT = 48, 8, 13, 40
FIGURES = ("supervised", "weight_sum", "loss", "loss_den", "topk", "slot_hits", "slot_count", "draft_entropy")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = np.random.Generator(np.random.PCG64(11))

    def write(self, name, tensors):
        path = os.path.join(self.folder, name)
        safetensors.write(path, tensors)
        return path

    def normal(self, *shape):
        return self.random.standard_normal(shape, dtype=np.float32)

    def assert_close(self, got, want, bound=2e-5):
        if isinstance(want, dict):
            for key, value in want.items():
                self.assert_close(got[key], value, bound)
        elif isinstance(want, list):
            for a, b in zip(got, want, strict=True):
                self.assert_close(a, b, bound)
        elif isinstance(want, int):
            self.assertEqual(got, want)
        else:
            self.assertLessEqual(abs(got - want), bound * abs(want))


class Subset(Case):
    def setUp(self):
        super().setUp()
        self.ids = np.sort(self.random.choice(VT, VD, replace=False)).astype(np.int64)
        self.part = {"draft_hidden": self.normal(T, H), "target_hidden": self.normal(T, H),
                     "lm_head": self.normal(VD, H), "target_lm_head": self.normal(VT, H),
                     "label": self.random.integers(0, VT, T)}
        self.maps = {"draft_to_target": self.ids, "d2t": self.ids - np.arange(VD)}
        outside = np.full(VT, -np.inf, np.float32)
        outside[self.ids] = 0
        head = np.zeros((VT, H), np.float32)
        head[self.ids] = self.part["lm_head"]
        # The same step over the whole vocabulary, the draft's other columns -inf; q renormalised over the draft's.
        self.whole = {**self.part, "lm_head": head, "bias": outside, "target_bias": outside}
        self.inside = np.isin(self.part["label"], self.ids)
        self.whole["loss_mask"] = self.inside.astype(np.uint8)

    def answers(self, name, tensors, *options):
        return run_json("run", self.write(name, tensors), "--labels", "given", *options)

    def test_ids_and_offsets_mean_the_same_as_a_whole_vocabulary_of_minus_infinities(self):
        want = self.answers("whole", self.whole, "--terms", "kl=1,ce=0.5")
        offsets = self.ids - np.arange(VD)
        for name, tensor in (("draft_to_target", self.ids), ("draft_to_target", self.ids.astype(np.int32)),
                             ("d2t", offsets)):
            got = self.answers("part", {**self.part, name: tensor}, "--terms", "kl=1,ce=0.5")
            self.assert_close({k: got[k] for k in FIGURES}, {k: want[k] for k in FIGURES})

    def test_alpha_is_against_the_whole_target(self):
        full = {k: v for k, v in self.whole.items() if k != "target_bias"}
        full["target_bias"] = np.zeros(VT, np.float32)
        want = self.answers("full", full, "--terms", "tv=1")
        got = self.answers("part", {**self.part, "draft_to_target": self.ids})
        self.assert_close([got["alpha"], got["tau"], got["target_top1"]],
                          [want["alpha"], want["tau"], want["target_top1"]])

    def test_rows_outside_are_dropped_or_kept(self):
        batch = {**self.part, "draft_to_target": self.ids}
        slot = np.arange(T) % 16
        drop, keep = self.answers("drop", batch), self.answers("keep", batch, "--outside", "keep")
        self.assertEqual(drop["supervised"], int(np.sum(self.inside & (slot > 0))))
        self.assertEqual(keep["supervised"], int(np.sum(slot > 0)))
        self.assertEqual(keep["topk"]["1"]["hits"], drop["topk"]["1"]["hits"])

    def test_a_pass_takes_every_batch_with_its_own_map_or_the_one_beside_the_weight(self):
        part = {k: v for k, v in self.part.items() if k != "lm_head"}
        total, beside, files = 0, 0, []
        heads = [self.write(f"head{i}", {"lm_head": self.part["lm_head"], **more})
                 for i, more in enumerate(({}, {"d2t": self.maps["d2t"]}))]
        for i in range(24):
            batch = {**part, "draft_hidden": self.normal(T, H)}
            files.append(self.write(f"plain{i}", batch))
            beside += run_json("run", files[-1], "--lm-head", heads[1])["loss_num"]
            ids = self.ids if i % 3 == 0 else np.sort(self.random.choice(VT, VD, replace=False))
            own = self.write(f"own{i}", {**batch, "draft_to_target": ids.astype(np.int64)})
            total += run_json("run", own, "--lm-head", heads[0])["loss_num"]
        own = [name.replace("plain", "own") for name in files]
        for prefetch in (1, 4):
            got = run_json("run", *own, "--lm-head", heads[0], "--prefetch", prefetch)
            self.assert_close(got["loss_num"], total, 1e-6)
            got = run_json("run", *files, "--lm-head", heads[1], "--prefetch", prefetch)
            self.assert_close(got["loss_num"], beside, 1e-6)

    def test_what_does_not_fit_is_refused(self):
        falling = self.ids[::-1].copy()
        beyond = self.ids.copy()
        beyond[-1] = VT
        no_head = {k: v for k, v in self.part.items() if k != "target_lm_head"}
        refused = [({**self.part, "draft_to_target": falling}, ["draft_to_target[1]", "ascending"]),
                   ({**self.part, "draft_to_target": beyond}, ["draft_to_target[12] = 40", "below target_vocab 40"]),
                   ({**self.part, "draft_to_target": self.ids[:-1]}, ["12 entries", "13"]),
                   ({**self.part, "draft_to_target": self.ids.astype(np.float32)}, ["dtype F32", "I32 or I64"]),
                   ({**self.part, "d2t": -self.ids - 1}, ["'d2t'", "0 to 2147483647, a distance"]),
                   ({**self.part, **self.maps}, ["bad: holds both 'draft_to_target' and 'd2t'"]),
                   ({**no_head, "draft_to_target": self.ids}, ["no 'target_lm_head'"])]
        for tensors, words in refused:
            done = run("run", self.write("bad", tensors), "--labels", "given")
            self.assertEqual(done.returncode, 3, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        head = self.write("head", {"lm_head": self.part["lm_head"], **self.maps})
        done = run("run", self.write("batch", self.part), "--lm-head", head)
        self.assertEqual(done.returncode, 3)
        self.assertIn("head: holds both", done.stderr)
        batch = {**self.part, "d2t": self.maps["d2t"]}
        self.assertEqual(self.answers("own", batch, "--lm-head", head)["loss"], self.answers("own", batch)["loss"])
        done = run("run", self.write("ce", {**self.part, "draft_to_target": self.ids}), "--terms", "ce=1", "--outside",
                   "keep")
        self.assertEqual(done.returncode, 2)
        self.assertIn("outside drop", done.stderr)


class Transform(Case):
    def test_the_target_can_have_a_transform_of_its_own(self):
        """The target's scale in its weight instead; a cap so wide that it does nothing, and one that does."""
        batch = {"draft_hidden": self.normal(T, H), "target_hidden": self.normal(T, H), "lm_head": self.normal(VT, H),
                 "target_lm_head": self.normal(VT, H)}
        scaled = {**batch, "target_lm_head": batch["target_lm_head"] * np.float32(0.5)}
        want = run_json("run", self.write("scaled", scaled), "--scale", "2", "--target-scale", "1")
        got = run_json("run", self.write("batch", batch), "--scale", "2", "--target-scale", "0.5")
        self.assert_close([got["loss"], got["alpha"], got["target_top1"]],
                          [want["loss"], want["alpha"], want["target_top1"]])
        path = os.path.join(self.folder, "batch")
        plain = run_json("run", path)
        wide = run_json("run", path, "--target-softcap", "100000")
        tight = run_json("run", path, "--target-softcap", "1")
        self.assert_close([wide["loss"]], [plain["loss"]])
        self.assertLess(tight["target_top1"], plain["target_top1"])
        self.assertEqual(tight["draft_top1"], plain["draft_top1"])
        self.assertEqual(run_json("run", path, "--softcap", "1")["target_top1"], tight["target_top1"])
        self.assertEqual(run_json("run", path, "--softcap", "1", "--target-softcap", "0")["target_top1"],
                         plain["target_top1"])


class Bias(Case):
    def test_its_gradient_is_that_of_a_head_column_fed_with_ones(self):
        hidden = self.normal(T, H)
        hidden[:, 3] = 1
        tensors = {"draft_hidden": hidden, "target_hidden": self.normal(T, H), "lm_head": self.normal(VT, H),
                   "bias": self.normal(VT)}
        out = os.path.join(self.folder, "grad")
        for options in ([], ["--scale", "0.25", "--softcap", "4"], ["--decay", "dpace:0.5", "--chunk", "16"]):
            run_json("run", self.write("batch", tensors), "--grad", out, "--grad-head", "--grad-bias", *options)
            grads, _ = safetensors.read(out)
            scale = 0.25 if "--scale" in options else 1.0
            bias, column = grads["bias.grad"], grads["lm_head.grad"][:, 3] / scale
            self.assertEqual(bias.shape, (VT,))
            self.assertGreater(np.abs(bias).max(), 0)
            np.testing.assert_allclose(bias, column, rtol=1e-5, atol=1e-6 * np.abs(column).max())

    def test_without_a_bias_it_is_refused(self):
        tensors = {"draft_hidden": self.normal(T, H), "target_hidden": self.normal(T, H), "lm_head": self.normal(VT, H)}
        done = run("run", self.write("batch", tensors), "--grad", os.path.join(self.folder, "grad"), "--grad-bias")
        self.assertEqual(done.returncode, 3)
        self.assertIn("'bias'", done.stderr)


if __name__ == "__main__":
    unittest.main()
