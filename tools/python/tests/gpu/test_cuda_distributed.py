"""NCCL: DistributedDataParallel, and FSDP2 with the head frozen, trained, or sharded and gathered by hand.

Each runs on one device, where collectives are copies, and on two, where a rank has half of the rows; either way gradients
and figures are those of one process over all rows."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from device_step import batch
from torch import nn

import onehead

HIDDEN = 192
WORLDS = [
    pytest.param(n, marks=pytest.mark.skipif(torch.cuda.device_count() < n, reason=f"needs {n} CUDA devices"))
    for n in (1, 2)
]


class Drafter(nn.Module):
    """A layer and the head; the loss is computed inside of forward, where FSDP has gathered the weights."""

    def __init__(self, head, trains):
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(*reversed(head.shape), bias=False)
        self.head.weight = nn.Parameter(head.clone(), requires_grad=trains)

    def forward(self, draft, target, mask, norm, head=None):
        hidden = draft + self.layer(draft)
        return onehead.draft_loss(hidden, self.head.weight if head is None else head, target, loss_mask=mask, norm=norm)


def part(rank, world, device):
    """A rank's rows: draft, target, mask. Parts have different numbers of supervised rows."""
    draft, rest = batch(rows=256, dtype=torch.float32, seed=3, device="cuda:0")
    mask = rest["loss_mask"]
    mask[128:] *= mask[128:] > 0.8
    rows = slice(rank * 256 // world, (rank + 1) * 256 // world)
    return draft[rows].to(device), rest["target_hidden"][rows].to(device), mask[rows], rest["lm_head"].to(device)


def train_step(model, rank, world, device, **head):
    draft, target, mask, _ = part(rank, world, device)
    n = onehead.weight_sum(mask.to(device))
    dist.all_reduce(n)
    # Gradients are averaged over the ranks: N over their number makes that the sum over N.
    loss, metrics = model(draft, target, mask, n / world, **head)
    loss.backward()
    return loss.detach(), metrics.all_reduce()


def gathered(tensor):
    """A tensor of all ranks, on the host."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()


def ddp(rank, world, device, head):
    model = nn.parallel.DistributedDataParallel(Drafter(head, True).to(device), device_ids=[device.index])
    loss, metrics = train_step(model, rank, world, device)
    inner = model.module
    return dict(loss=loss, metrics=metrics, layer=inner.layer.weight.grad, head=inner.head.weight.grad)


def sharded(device, head, trains, **options):
    from torch.distributed.fsdp import fully_shard

    model = Drafter(head, trains).to(device)
    fully_shard(model.layer, **options)
    fully_shard(model, **options)
    return model


def fsdp(rank, world, device, head, trains):
    model = sharded(device, head, trains)
    with pytest.raises(onehead.InvalidArgument, match="full_tensor"):
        draft, target, mask, _ = part(rank, world, device)
        onehead.draft_loss(draft, model.head.weight, target, loss_mask=mask)
    loss, metrics = train_step(model, rank, world, device)
    for _ in range(2):  # later steps gather the weights anew
        model.zero_grad()
        again, _ = train_step(model, rank, world, device)
        assert torch.equal(loss, again)
    grad = model.head.weight.grad
    return dict(loss=loss, metrics=metrics, layer=model.layer.weight.grad, head=grad)


def fsdp_frozen(rank, world, device, head):
    return fsdp(rank, world, device, head, False)


def fsdp_trained(rank, world, device, head):
    return fsdp(rank, world, device, head, True)


def fsdp_bf16(rank, world, device, head):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(device, head, True, mp_policy=policy)
    loss, metrics = train_step(model, rank, world, device)
    return dict(loss=loss, metrics=metrics, layer=model.layer.weight.grad, head=model.head.weight.grad)


def gathered_by_hand(rank, world, device, head):
    """The head is a sharded DTensor outside of FSDP; full_tensor's gradient adds over the ranks with Partial."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Partial, Shard, distribute_tensor

    mesh = init_device_mesh("cuda", (world,))
    weight = nn.Parameter(distribute_tensor(head.to(device), mesh, [Shard(0)]))
    model = Drafter(head[:1], False).to(device)
    fully_shard(model.layer)
    loss, metrics = train_step(model, rank, world, device, head=weight.full_tensor(grad_placements=[Partial()]))
    # It was added, not averaged.
    return dict(loss=loss, metrics=metrics, layer=model.layer.weight.grad, head=weight.grad.full_tensor() / world)


def worker(rank, work, world, port, folder):
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    head = part(rank, world, device)[3]
    found = work(rank, world, device, head)
    found["metrics"] = found["metrics"].ratios()
    torch.save({k: gathered(v) if torch.is_tensor(v) else v for k, v in found.items()}, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("work", [ddp, fsdp_frozen, fsdp_trained, fsdp_bf16, gathered_by_hand], ids=lambda f: f.__name__)
def test_ranks_together_take_the_step_of_one_process(work, world, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(work, world, port, str(tmp_path)), nprocs=world)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]

    draft, target, mask, head = part(0, 1, torch.device("cuda:0"))
    model = Drafter(head, True).cuda()
    loss, metrics = model(draft, target, mask, "weights")
    loss.backward()
    # f32 sums in another order; of bf16 weights and hidden states, each rounded to 2^-9 of itself.
    near = 2e-2 if work is fsdp_bf16 else 1e-4
    for rank in ranks:
        assert (rank["layer"] - model.layer.weight.grad.cpu()).norm() < near * model.layer.weight.grad.norm()
        if work is fsdp_frozen:
            assert rank["head"] is None
        else:
            assert (rank["head"] - model.head.weight.grad.cpu()).norm() < near * model.head.weight.grad.norm()
        right = metrics.ratios()
        for name in ("rows", "supervised", "blocks", "slot_count", "nonfinite_rows"):
            assert rank["metrics"][name] == right[name]
        assert rank["metrics"]["alpha"] == pytest.approx(right["alpha"], rel=near)
        assert rank["metrics"]["loss"] / world == pytest.approx(right["loss"], rel=near)
    assert float(sum(rank["loss"] for rank in ranks)) / world == pytest.approx(float(loss), rel=near)
