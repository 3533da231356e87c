"""What the package costs beside the C call, and its import beside PyTorch's.

    python3 call_overhead.py [--rounds N] [--device cpu|cuda] [--json]

T = 256, H = 256, V = 8,003. draft_loss (forward, with a gradient to form) and oh_plan_run on the same plan take turns in
one process; both are timed from outside, in wall-clock time and in CPU time of the calling thread. Printed are the
quartiles of each and of the differences within a turn: the cost is the median difference, and its quartiles say how calm
the machine was. On a GPU the calls only enqueue.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + ([] if "ONEHEAD_INSTALLED" in os.environ else [os.path.dirname(HERE)])

IMPORT = "import torch, time; t = time.perf_counter(); import onehead; print(time.perf_counter() - t)"
ROWS, HIDDEN, VOCAB = 256, 256, 8003


def import_seconds():
    """Of `import onehead` once torch is there, in fresh processes; the first one may read a cold disk."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", IMPORT]
    return [float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout) for _ in range(5)]


def quartiles(values):
    return [round(q, 4) for q in statistics.quantiles(values, n=4, method="inclusive")]


def take_turns(package, c, rounds):
    """Milliseconds of each call: {clock: (package's, C's)}."""
    found = {"wall": ([], []), "thread": ([], [])}
    clocks = {"wall": time.perf_counter, "thread": time.thread_time}
    for turn in range(rounds):
        # Who goes first changes: the second finds the weight in the caches.
        for which in (0, 1) if turn % 2 else (1, 0):
            begin = {name: clock() for name, clock in clocks.items()}
            (package, c)[which]()
            for name, clock in clocks.items():
                found[name][which].append((clock() - begin[name]) * 1e3)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    import torch

    import onehead
    from ours import c_call

    torch.manual_seed(0)
    draft = torch.randn(ROWS, HIDDEN, device=options.device, requires_grad=True)
    rest = dict(
        lm_head=torch.randn(VOCAB, HIDDEN, device=options.device) / 16,
        target_hidden=torch.randn(ROWS, HIDDEN, device=options.device),
        loss_mask=torch.ones(ROWS, dtype=torch.uint8),
    )

    def package():
        onehead.draft_loss(draft, **rest)

    c = c_call(draft, rest)
    for _ in range(5):
        package()
        c()
    times = take_turns(package, c, options.rounds)
    report = {"device": options.device, "import_seconds": sorted(import_seconds())}
    for name, (ours, theirs) in times.items():
        report[name + "_ms"] = {
            "package": quartiles(ours),
            "c": quartiles(theirs),
            "difference": quartiles([a - b for a, b in zip(ours, theirs)]),
        }
    if options.json:
        print(json.dumps(report))
        return
    print("ms, quartiles     draft_loss                   oh_plan_run                  difference")
    for name in times:
        row = report[name + "_ms"]
        print(f"{name:8}", *(f"{str(row[what]):>28}" for what in ("package", "c", "difference")))
    print(f"import onehead after torch: {report['import_seconds'][2]:.3f} s (median of 5)")


if __name__ == "__main__":
    main()
