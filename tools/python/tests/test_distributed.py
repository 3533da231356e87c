"""Two processes with gloo: DDP, and figures added over ranks."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import draws
import onehead

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="PyTorch without torch.distributed")


class Drafter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer = torch.nn.Linear(24, 24)

    def forward(self, x):
        return self.layer(x)


def batch(rank=None):
    """A rank's half of the rows, or all of them. Halves have different numbers of supervised rows."""
    whole = dict(draws.batch(seed=21, rows=128), labels=None)
    whole["loss_mask"][64:] = (whole["loss_mask"][64:] > 0.6).float()
    if rank is None:
        return whole
    rows = slice(64 * rank, 64 * rank + 64)
    return dict(whole, **{k: whole[k][rows] for k in ("draft_hidden", "target_hidden", "loss_mask")})


def step(model, b, norm):
    x = b.pop("draft_hidden")
    loss, metrics = onehead.draft_loss(model(x), **b, norm=norm)
    loss.backward()
    return loss.detach(), metrics


def worker(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Drafter())
    b = batch(rank)
    n = onehead.weight_sum(b["loss_mask"])
    dist.all_reduce(n)
    # DDP averages gradients: N over the ranks' number makes that the sum over N.
    loss, metrics = step(model, b, n / dist.get_world_size())
    model.zero_grad()
    again, _ = step(model, batch(rank), n / dist.get_world_size())
    assert torch.equal(loss, again)
    own = onehead.draft_loss(model(batch(rank)["draft_hidden"]), **rest(batch(rank)))[1]
    torch.save(
        {
            "grads": [p.grad for p in model.parameters()],
            "loss": loss,
            "given": metrics.all_reduce().ratios(),
            "by weights": own.all_reduce().ratios(),
        },
        f"{folder}/{rank}.pt",
    )
    # A DDP module is to go before its process group, and no rank before the others are done with it.
    del model
    dist.barrier()
    dist.destroy_process_group()


def rest(b):
    return {k: v for k, v in b.items() if k != "draft_hidden"}


def test_ddp_over_two_ranks_is_one_step_over_all_rows(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port, str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{r}.pt") for r in (0, 1)]

    model = Drafter()
    loss, metrics = step(model, batch(), "weights")
    for rank in ranks:
        for grad, parameter in zip(rank["grads"], model.parameters()):
            assert torch.allclose(grad, parameter.grad, rtol=1e-5, atol=1e-7)
    right = metrics.ratios()
    assert float(ranks[0]["loss"] + ranks[1]["loss"]) / 2 == pytest.approx(float(loss), rel=1e-6)
    for kind in ("given", "by weights"):
        assert ranks[0][kind] == ranks[1][kind] or kind == "given"
        for name in ("rows", "supervised", "blocks", "topk", "slot_hits", "slot_count", "nonfinite_rows"):
            assert ranks[0][kind][name] == right[name]
    for name in ("loss", "loss_num", "loss_den", "alpha", "tau", "draft_entropy", "eal"):
        assert ranks[1]["by weights"][name] == pytest.approx(right[name], rel=1e-6)
