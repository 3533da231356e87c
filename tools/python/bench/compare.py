"""onehead against plain PyTorch and public fused losses, in one process, on the same tensors, taking turns.

    python3 compare.py [--peers FOLDER] [--rows T] [--rounds N] [--budget SECONDS] [--out FILE] [--only WORD ...]

Three objectives, each with its own rivals: `kl`, a drafter's divergence with all figures of the step, as trainers write it;
`jsd` and `ce`, every row alike, loss and gradient only, as peers compute them. FOLDER has wheels of the peers or a .tar.xz
of an unpacked site-packages; they are unpacked and not installed. For each case: milliseconds (median of the rounds; CUDA
events around forward and backward), peak memory above the inputs, projections of the vocabulary where they are known, and
the relative error of the draft's gradient against float64 on some rows.

At last `package`: draft_loss and backward against the C call alone, in turns on one plan, `--package-rounds` pairs after some
seconds of warming up. The ratio is the median of the pairs' ratios. `--only package` runs nothing else.

A case that fails is reported and left out; quack-kernels wants nvidia-cutlass-dsl and what that wants. No case is begun once
the budget is spent. A table on standard output, all of it as JSON in FILE.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + ([] if "ONEHEAD_INSTALLED" in os.environ else [os.path.dirname(HERE)])

import onehead  # noqa: E402
import ours  # noqa: E402
import peers  # noqa: E402
import trainers  # noqa: E402
from inputs import Inputs, exact_gradients, make_inputs  # noqa: E402

WARM_SECONDS = 3.0  # of the package against the C call: a GPU's clock settles under its own load
#: Before a case is timed it runs for so long: a GPU that its power bounds runs faster after lighter work than after its own.
SETTLE_SECONDS = 0.5


@dataclasses.dataclass
class Case:
    name: str
    objective: str
    make: Callable[[Inputs], Callable[[], Dict[str, Any]]]
    is_ours: bool = False
    options: Dict[str, Any] = dataclasses.field(default_factory=dict)
    step: Optional[Callable[[], Dict[str, Any]]] = None
    ms: List[float] = dataclasses.field(default_factory=list)
    report: Dict[str, Any] = dataclasses.field(default_factory=dict)


def our_case(name: str, objective: str, **options: Any) -> Case:
    return Case(name, objective, lambda inputs: ours.step(inputs, objective, **options), True, options)


def cases(tile: Optional[str]) -> List[Case]:
    return [
        our_case("onehead", "kl", tile=tile),
        our_case("onehead, anchors too", "kl", tile=tile, first_slot=0),
        Case("trainer, naive", "kl", trainers.naive),
        Case("trainer, shared logits", "kl", trainers.shared),
        Case("gradient in forward", "kl", trainers.in_forward),
        Case("gradient in forward, torch.compile", "kl", trainers.compiled),
        our_case("onehead", "jsd", tile=tile),
        Case("liger-kernel", "jsd", peers.liger_jsd),
        Case("liger-kernel, Triton", "jsd", lambda inputs: peers.liger_jsd(inputs, "nvidia-triton")),
        our_case("onehead", "ce", tile=tile),
        Case("liger-kernel", "ce", peers.liger_ce),
        Case("liger-kernel, Triton", "ce", lambda inputs: peers.liger_ce(inputs, "nvidia-triton")),
        Case("cut-cross-entropy", "ce", peers.cut_cross_entropy),
        Case("quack-kernels", "ce", peers.quack_ce),
    ]


class Clock:
    """Milliseconds of work on the current stream, and peak memory above a baseline."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def time(self, work: Callable[[], Any]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) * 1e3
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def allocated(self) -> int:
        gc.collect()
        return torch.cuda.memory_allocated() if self.cuda else 0

    def peak(self, work: Callable[[], Any], baseline: int) -> Optional[int]:
        if not self.cuda:
            work()
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - baseline

    def forget(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


def clear(inputs: Inputs) -> None:
    inputs.draft.grad = inputs.head.grad = None


def begin(case: Case, inputs: Inputs, clock: Clock, rows: torch.Tensor, exact: Dict[str, torch.Tensor]) -> None:
    """The first steps: compiles, measures memory and errors. What it keeps from then on is counted as its memory."""
    clear(inputs)
    baseline = clock.allocated()
    start = time.perf_counter()
    case.step = case.make(inputs)
    case.step()
    clear(inputs)
    case.report["first_seconds"] = time.perf_counter() - start
    said: Dict[str, Any] = {}
    case.report["peak_bytes"] = clock.peak(lambda: said.update(case.step()), baseline)
    grad, right = inputs.draft.grad[rows].double(), exact[case.objective]
    if not case.options.get("first_slot", 1):
        # Another N and other weights: what is compared is the direction.
        grad = grad * (grad * right).sum(1, keepdim=True) / grad.pow(2).sum(1, keepdim=True)
    case.report["gradient_error"] = float((grad - right).norm() / right.norm())
    case.report["loss"] = float(said["loss"].detach())
    case.report["projections"] = said.get("projections")
    if said.get("kernels"):
        case.report["kernels"] = said["kernels"]
    if case.is_ours:
        plan = ours.plan(inputs, case.objective, **case.options)
        case.report.update(projections=sum(plan.projections.values()), tile=plan.tile, chunk=plan.chunk)
    if "streaks" in said:
        case.report["streaks"] = {str(k): float(v) for k, v in said["streaks"].items()}
    elif "metrics" in said:
        topk = said["metrics"].ratios()["topk"]
        case.report["streaks"] = {k: figures["streak"] for k, figures in topk.items()}
    clear(inputs)


def failure(error: Exception) -> Dict[str, Any]:
    """Why a case is left out: the first line, and the calls that led there."""
    first = (str(error).strip().splitlines() or [""])[0]
    calls = traceback.extract_tb(error.__traceback__)[-4:]
    where = [f"{os.path.basename(call.filename)}:{call.lineno} {call.name}" for call in calls]
    return dict(failed=f"{type(error).__name__}: {first}", where=where)


def warm_all(chosen: List[Case], inputs: Inputs, clock: Clock, exact_rows: int, deadline: float) -> List[Case]:
    """Those of the chosen cases that have run."""
    if not chosen:
        return []
    rows, exact = exact_gradients(inputs, exact_rows)
    alive = []
    for case in chosen:
        clock.forget()
        if time.monotonic() > deadline:
            case.report["failed"] = "left out: the time budget is spent"
        else:
            try:
                begin(case, inputs, clock, rows, exact)
                alive.append(case)
            except Exception as error:  # a peer's failure, of whatever kind, must not end the comparison
                case.step = None
                case.report.update(failure(error))
        print(f"{case.objective:4} {case.name}: {case.report.get('failed', 'ready')}", file=sys.stderr, flush=True)
    clear(inputs)
    return alive


def settle(case: Case, inputs: Inputs, clock: Clock) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while clock.cuda and time.monotonic() < end:
        clear(inputs)
        clock.time(case.step)


def take_turns(alive: List[Case], inputs: Inputs, clock: Clock, rounds: int, deadline: float) -> int:
    done = 0
    for _ in range(rounds):
        if done and time.monotonic() > deadline:
            break
        for case in [case for case in alive if "failed" not in case.report]:
            try:
                settle(case, inputs, clock)
                clear(inputs)
                case.ms.append(clock.time(case.step))
            except Exception as error:
                case.report.update(failure(error))
        done += 1
    clear(inputs)
    return done


def quartiles(values: List[float]) -> List[float]:
    return statistics.quantiles(values, n=4, method="inclusive")


def against_c(inputs: Inputs, clock: Clock, tile: Optional[str], rounds: int) -> Dict[str, Any]:
    """draft_loss and backward against oh_plan_run alone: the same plan, inputs, workspace, stream and outputs."""
    package, c = ours.step(inputs, "kl", tile=tile), ours.c_call(inputs.draft, ours.arguments(inputs, "kl", tile=tile))
    works = {"package": package, "c": c}
    clear(inputs)
    package()
    same = torch.equal(inputs.draft.grad, c()["grad"])
    warm = time.monotonic() + WARM_SECONDS
    while time.monotonic() < warm:
        for work in works.values():
            clear(inputs)
            clock.time(work)
    ms: Dict[str, List[float]] = {"package": [], "c": []}
    for turn in range(rounds):
        # Who goes first changes: clocks and temperature drift.
        for name in ("package", "c") if turn % 2 else ("c", "package"):
            clear(inputs)
            ms[name].append(clock.time(works[name]))
    clear(inputs)
    ratios = [a / b for a, b in zip(ms["package"], ms["c"])]
    return dict(
        rounds=rounds,
        ratio=statistics.median(ratios),
        ratio_quartiles=quartiles(ratios),
        difference_ms_quartiles=quartiles([a - b for a, b in zip(ms["package"], ms["c"])]),
        package_ms=statistics.median(ms["package"]),
        c_ms=statistics.median(ms["c"]),
        all_ms=ms,
        same_gradient=same,
    )


def table(all_cases: List[Case]) -> str:
    best = {case.objective: statistics.median(case.ms) for case in reversed(all_cases) if case.is_ours and case.ms}
    lines = [f"{'':4} {'':36} {'ms':>8} {'x':>6} {'GiB':>6} {'proj.':>6} {'grad. error':>11}"]
    for case in all_cases:
        r = case.report
        if "failed" in r:
            lines.append(f"{case.objective:4} {case.name:36} {r['failed'][:80]}")
        elif case.ms:
            ms = statistics.median(case.ms)
            peak = "" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 2**30:.2f}"
            times = f"{ms / best[case.objective]:.2f}" if case.objective in best else ""
            lines.append(
                f"{case.objective:4} {case.name:36} {ms:8.1f} {times:>6} {peak:>6} "
                f"{r['projections'] or '':>6} {r['gradient_error']:11.2e}"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="FOLDER", help="wheels of the peers; without it, what is installed")
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--threads", type=int, help="of a CPU (default: each library's own choice)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=220, help="seconds (default 220)")
    parser.add_argument("--exact-rows", type=int, default=64, help="rows compared with float64 (default 64)")
    parser.add_argument("--tile", help="tile of onehead's steps (default: the plan's own choice)")
    parser.add_argument("--only", nargs="*", default=[], help="words of objectives and names, or package")
    parser.add_argument("--package-rounds", type=int, default=16, help="pairs of the package and the C call (default 16)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()

    deadline = time.monotonic() + options.budget
    unpacked = tempfile.TemporaryDirectory()
    if options.peers:
        peers.unpack(options.peers, unpacked.name)
    clock = Clock(options.device)
    trainers.CHUNK = ours.CHUNK = options.chunk
    if options.threads:
        torch.set_num_threads(options.threads)
        ours.THREADS = options.threads
    dtype = torch.float32 if options.dtype == "f32" else torch.bfloat16
    inputs = make_inputs(options.rows, options.hidden, options.vocab, options.device, dtype)
    chosen = [
        case
        for case in cases(options.tile)
        if not options.only or any(word in f"{case.objective} {case.name}" for word in options.only)
    ]
    # A third of the time is the rounds'.
    alive = warm_all(chosen, inputs, clock, options.exact_rows, deadline - options.budget / 3)
    rounds = take_turns(alive, inputs, clock, options.rounds, deadline)
    found: Dict[str, Any] = dict(
        rows=options.rows,
        hidden=options.hidden,
        vocab=options.vocab,
        device=peers.cuda_name(),
        versions=dict(peers.versions(), onehead=onehead.version()),
        rounds=rounds,
        cases=[
            dict(
                objective=case.objective,
                name=case.name,
                ms=statistics.median(case.ms) if case.ms else None,
                all_ms=case.ms,
                **case.report,
            )
            for case in chosen
        ],
    )
    for case in chosen:
        case.step = None
    clock.forget()
    if chosen:
        print(table(chosen))
    if not options.only or "package" in options.only:
        try:
            found["against_c"] = against_c(inputs, clock, options.tile, options.package_rounds)
        except Exception as error:
            found["against_c"] = failure(error)
        brief = {name: value for name, value in found["against_c"].items() if name != "all_ms"}
        print("the package against the C call:", json.dumps(brief))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(found, file, indent=1)
    reports = [case.report for case in chosen if case.is_ours] + [found.get("against_c", {})]
    return 0 if all("failed" not in report for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
