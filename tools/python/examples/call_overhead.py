"""What the package costs beyond the C call: CPU time of draft_loss less that of oh_plan_run, T = 256, H = 256, V = 8,003.

    python3 call_overhead.py

Prints the median and the least of 40 calls, each after the last one's logits have been through the caches."""

import time

import torch

import onehead
from onehead import _library


def main():
    torch.manual_seed(0)
    draft = torch.randn(256, 256, requires_grad=True)
    target, weight = torch.randn(256, 256), torch.randn(8003, 256) / 16
    mask = torch.ones(256, dtype=torch.uint8)
    library = _library.library()
    run, inside = library.oh_plan_run, []

    def timed(*arguments):
        start = time.thread_time()
        status = run(*arguments)
        inside.append(time.thread_time() - start)
        return status

    for _ in range(5):
        onehead.draft_loss(draft, weight, target, loss_mask=mask)
    library.oh_plan_run = timed
    outside = []
    for _ in range(40):
        start = time.thread_time()
        onehead.draft_loss(draft, weight, target, loss_mask=mask)
        outside.append(time.thread_time() - start - inside[-1])
    library.oh_plan_run = run
    outside.sort()
    inside.sort()
    print(f"C call {inside[20] * 1e3:.1f} ms; around it {outside[20] * 1e3:.3f} ms (least {outside[0] * 1e3:.3f} ms)")


if __name__ == "__main__":
    main()
