"""python -m onehead: versions, backends and a self-check. Exit status 1 where the check fails."""

from __future__ import annotations

import argparse
import ctypes as C
import os
import sys
from typing import List, Tuple

import torch

from . import _structs as S
from ._context import context_for
from ._library import OneheadError, backend_file, carried_backends, library, version
from .functions import draft_loss


def candidates() -> List[Tuple[str, str, str]]:
    """(name, path, why it is refused or "") of each backend that a name would find: those that the wheel carries, then
    the search path's."""
    names = carried_backends()
    carried = []
    if names:  # then no search path is set: this one is the wheel's
        os.environ["ONEHEAD_BACKEND_PATH"] = os.path.dirname(backend_file(names[0]) or "")
        carried = [c for c in _listed() if c[0] in names]
        del os.environ["ONEHEAD_BACKEND_PATH"]
    return carried + [c for c in _listed() if c[0] not in names]


def _listed() -> List[Tuple[str, str, str]]:
    lib = library()
    count = lib.oh_backend_list(None, 0)
    found = (S.BackendCandidate * max(1, count))()
    lib.oh_backend_list(found, count)
    return [(c.name.decode(), c.path.decode(), c.verdict.decode()) for c in found[:count]]


def self_check(device: str) -> Tuple[float, float]:
    """Relative errors of loss and gradient of a small step against plain PyTorch in float64."""
    g = torch.Generator().manual_seed(0)
    draft, target, weight = (torch.randn(n, 32, generator=g) for n in (64, 64, 301))
    leaf = draft.to(device, copy=True).requires_grad_()
    loss, _ = draft_loss(leaf, weight.to(device), target.to(device), decay="none")
    loss.backward()

    exact = draft.double().requires_grad_()
    z, t = exact @ weight.double().T, target.double() @ weight.double().T
    kl = torch.nn.functional.kl_div(z.log_softmax(-1), t.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    right = kl[torch.arange(64) % 16 > 0].mean()
    right.backward()
    error = (leaf.grad.cpu().double() - exact.grad).norm() / exact.grad.norm()
    return abs(float(loss.detach()) / float(right.detach()) - 1), float(error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onehead", description=__doc__)
    parser.add_argument("--device", default="cpu", help="where the check runs: cpu (default), cuda, cuda:1")
    parser.add_argument("--bound", type=float, default=2e-5, help="largest relative error that passes (default 2e-5)")
    options = parser.parse_args()
    try:
        print(f"onehead   {version()}  {library().path}")
        print(f"PyTorch   {torch.__version__}")
        for name, path, verdict in candidates():
            print(f"backend   {name}  {path}  {f'refused: {verdict}' if verdict else 'ok'}")
        if options.device.startswith("cuda") and not torch.cuda.is_available():
            raise OneheadError(f"--device {options.device}: PyTorch sees no CUDA device")
        loss_error, grad_error = self_check(options.device)
        context = context_for(None, torch.device(options.device), 0)
        info = context.info()
        print(f"device    {context.name}: {info.name.decode()}; {info.kernel.decode()}")
    except (OneheadError, RuntimeError) as error:
        print(f"onehead: {error}", file=sys.stderr)
        return 1
    passed = loss_error <= options.bound and grad_error <= options.bound
    print(f"check     {'ok' if passed else 'FAILED'}: loss off by {loss_error:.1e}, gradient by {grad_error:.1e}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
