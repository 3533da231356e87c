"""Regenerates every golden file, or checks that it would come out the same.

    python3 generate.py                    writes cases/, cases.json, sample.json, SHA256SUMS
    python3 generate.py --check            regenerates elsewhere and compares; exit 1 when off
    python3 generate.py --sample-from DIR  first makes sample.safetensors from DIR's
                                           batch1.safetensors and lm_head.safetensors

Inputs are compared byte for byte. Float answers may differ in their last bits between
processors and versions of libm, and are compared with a tolerance.
"""

import argparse
import filecmp
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zlib
from dataclasses import replace

import numpy as np

import cases
import conditioning
import options as command
import oracle
import safetensors_numpy as safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 20_240_601
TOLERANCE = 1e-12  # of a number, or of the largest entry of a tensor

# The option sets that the sample's answers are stated for.
SAMPLE_SETS = {
    "kl_exp10": "",
    "ce_teacher": "--terms ce=1",
    "ce_label_gamma7": "--terms ce=1 --labels given --decay exp:7",
    "rkl": "--terms rkl=1",
    "jsd": "--terms jsd=1",
    "tv_count": "--terms tv=1 --norm count",
    "nla": "--terms nla=1",
    "lk_hybrid": "--terms lk_hybrid=1",
    "kl_cap": "--terms kl=1,cap=0.1",
    "ce_dpace": "--terms ce=1 --decay dpace:0.5 --norm count",
    "ce_dpace_weights": "--terms ce=1 --decay dpace:0.5 --labels given",
    "mix": "--terms ce=0.1,tv=0.9 --labels given --decay exp:4",
    "kl_nodecay_sum": "--decay none --norm none",
    "kl_skipgap": "--gap skip",
    "kl_norm_number": "--norm 1234.5",
    "all": f"--terms {cases.ALL_TERMS} --labels given --norm count --gap skip"
           " --topk 1,2,4,8,16",
    # The last two supervise other rows, whose logits the oracle has to make anew.
    "kl_slot0": "--first-slot 0 --decay exp:4",
    "kl_block8": "--block-size 8",
}


# ---- making ----------------------------------------------------------------------------------


def stored(tensors, dtype):
    """Tensors in the types they are written in."""
    convert = {"bf16": safetensors.BF16, "f16": np.float16, "f32": np.float32}[dtype]
    wide = ("draft_hidden", "target_hidden", "lm_head", "target_lm_head")
    result = {}
    for name, tensor in tensors.items():
        result[name] = convert(tensor) if name in wide else tensor
    return result


def tags_of(case, options):
    simple = set(options.terms) <= {"ce", "kl"} and options.decay[0] != "dpace"
    plain_ce = not options.label_smoothing and not options.z_loss
    stage = "foundation" if simple and plain_ce else "objectives"
    return sorted({stage, *case.tags, *(["head_grad"] if case.head_grad else [])})


def make_case(case, folder):
    """Writes a case's file and returns its entry in cases.json."""
    rng = np.random.Generator(np.random.PCG64([SEED, zlib.crc32(case.name.encode())]))
    tensors = case.make(rng, case.args)
    has_target = "target_hidden" in tensors
    options = replace(command.parse_args(case.args, has_target), head_grad=case.head_grad)
    path = os.path.join(folder, case.name + ".safetensors")
    safetensors.write(path, stored(tensors, case.dtype))
    written, _ = safetensors.read(path)
    for name, tensor in tensors.items():  # the grid must be representable
        assert np.array_equal(written[name], tensor, equal_nan=tensor.dtype.kind == "f"), name
    draft_rows, target_rows = conditioning.fragile(written, options)
    assert not len(draft_rows) and not len(target_rows), (
        f"{case.name}: fragile rows {draft_rows}, target rows {target_rows}")

    answers = oracle.Oracle(written).run(options)
    expected = {
        "draft_hidden.grad": answers.draft_grad,
        "row_loss": answers.row_loss,
        "weight": answers.weight,
        "label": answers.label.astype(np.int32),
        "argmax": answers.argmax.astype(np.int32),
        "rank": answers.rank.astype(np.int32),
        "topk_id": answers.topk_id.astype(np.int32),
        "topk_logprob": answers.topk_logprob,
    }
    if case.head_grad:
        expected["lm_head.grad"] = answers.head_grad
    if case.logits:
        expected["draft_logits"] = tensors["draft_hidden"] @ tensors["lm_head"].T
        if has_target:
            head = tensors.get("target_lm_head", tensors["lm_head"])
            expected["target_logits"] = tensors["target_hidden"] @ head.T
    everything = stored(tensors, case.dtype)
    everything.update({f"expected.{name}": tensor for name, tensor in expected.items()})
    safetensors.write(path, everything)
    return {"args": case.args, "why": case.why, "tags": tags_of(case, options),
            **answers.summary}


def make_cases(folder):
    os.makedirs(os.path.join(folder, "cases"), exist_ok=True)
    entries = {}
    for case in cases.CASES:
        assert case.name + ".safetensors" not in entries, f"{case.name} twice"
        entries[case.name + ".safetensors"] = make_case(case, os.path.join(folder, "cases"))
    write_json(os.path.join(folder, "cases.json"), entries)


def make_sample(source, path):
    tensors, _ = safetensors.read(os.path.join(source, "batch1.safetensors"))
    tensors.update(safetensors.read(os.path.join(source, "lm_head.safetensors"))[0])
    safetensors.write(path, stored(tensors, "bf16"), {
        "source": "hidden states of a small trained target and drafter, held-out split",
        "block_size": 16})


def make_sample_answers(folder):
    tensors, _ = safetensors.read(os.path.join(HERE, "sample.safetensors"))
    answers = oracle.Oracle(tensors)
    sets = {name: {"args": args, **answers.run(command.parse_args(args)).summary}
            for name, args in SAMPLE_SETS.items()}
    write_json(os.path.join(folder, "sample.json"), {"sample.safetensors": sets})


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=1, sort_keys=True, allow_nan=False)
        file.write("\n")


def data_files(folder):
    names = ["cases.json", "sample.json", "sample.safetensors"]
    names += ["cases/" + name for name in os.listdir(os.path.join(folder, "cases"))
              if name.endswith(".safetensors")]
    return sorted(names)


def checksums(folder):
    lines = []
    for name in data_files(folder):
        with open(os.path.join(folder, name), "rb") as file:
            lines.append(f"{hashlib.sha256(file.read()).hexdigest()}  {name}\n")
    return "".join(lines)


# ---- checking --------------------------------------------------------------------------------


def json_differences(path, got, want):
    if isinstance(want, dict) and isinstance(got, dict):
        if got.keys() != want.keys():
            yield f"{path}: other keys"
        for key in got.keys() & want.keys():
            yield from json_differences(f"{path}/{key}", got[key], want[key])
    elif isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        for i, pair in enumerate(zip(got, want)):
            yield from json_differences(f"{path}[{i}]", *pair)
    elif isinstance(want, float) and isinstance(got, float):
        if not np.isclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * 1e-3):
            yield f"{path}: {got} instead of {want}"
    elif got != want or type(got) is not type(want):
        yield f"{path}: {got} instead of {want}"


def tensor_differences(path, got_file, want_file):
    if filecmp.cmp(got_file, want_file, shallow=False):
        return
    (got, _), (want, _) = safetensors.read(got_file), safetensors.read(want_file)
    if got.keys() != want.keys():
        yield f"{path}: other tensors"
    for name in sorted(got.keys() & want.keys()):
        a, b = got[name], want[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{path}/{name}: other type or shape"
        elif name.startswith("expected.") and a.dtype == np.float64:
            largest = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
            if not np.allclose(a, b, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
                yield f"{path}/{name}: other numbers"
        elif a.tobytes() != b.tobytes():
            yield f"{path}/{name}: other bytes"


def check():
    """Differences between the committed files and freshly made ones."""
    with tempfile.TemporaryDirectory() as folder:
        make_cases(folder)
        make_sample_answers(folder)
        shutil.copy(os.path.join(HERE, "sample.safetensors"), folder)
        if data_files(folder) != data_files(HERE):
            yield "other file names"
            return
        for name in data_files(folder):
            made, committed = os.path.join(folder, name), os.path.join(HERE, name)
            if name.endswith(".json"):
                with open(made) as got, open(committed) as want:
                    yield from json_differences(name, json.load(got), json.load(want))
            else:
                yield from tensor_differences(name, made, committed)
    with open(os.path.join(HERE, "SHA256SUMS")) as file:
        if file.read() != checksums(HERE):
            yield "SHA256SUMS is not that of the files"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sample-from", metavar="DIR")
    arguments = parser.parse_args()
    if arguments.check:
        found = list(check())
        for line in found:
            print(line)
        print(f"{len(data_files(HERE))} files, {len(found)} differences")
        return bool(found)
    if arguments.sample_from:
        make_sample(arguments.sample_from, os.path.join(HERE, "sample.safetensors"))
    shutil.rmtree(os.path.join(HERE, "cases"), ignore_errors=True)
    make_cases(HERE)
    make_sample_answers(HERE)
    with open(os.path.join(HERE, "SHA256SUMS"), "w") as file:
        file.write(checksums(HERE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
