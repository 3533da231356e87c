"""Public fused losses, as their documentation calls them. A package that can't be imported is reported by compare.py."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import site
import tarfile
import zipfile
from typing import Any, Callable, Dict, Optional

import torch
from inputs import Inputs
from torch import Tensor

Step = Callable[[], Dict[str, Any]]


def _step(loss: Callable[[], Tensor], kernels: Optional[str] = None) -> Step:
    def step() -> Dict[str, Any]:
        value = loss()
        value.backward()
        return dict(loss=value.detach(), kernels=kernels)

    return step


def _liger(loss: Callable[[], Tensor], primitive: str, kernels: Optional[str]) -> Step:
    """By its own choice of kernels, which falls on CuTe DSL's on Hopper where nvidia-cutlass-dsl is there, or by those named."""
    from liger_kernel.backends import resolve_impl, set_impl

    set_impl(kernels)
    step = _step(loss, resolve_impl(primitive).impl_name)

    def chosen() -> Dict[str, Any]:
        set_impl(kernels)
        return step()

    return chosen


def liger_jsd(inputs: Inputs, kernels: Optional[str] = None) -> Step:
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

    jsd = LigerFusedLinearJSD(jsd_beta=0.5)
    loss = lambda: jsd(inputs.draft, inputs.head, inputs.target, inputs.head, None)  # noqa: E731
    return _liger(loss, "jsd_loss_and_grad", kernels)


def liger_ce(inputs: Inputs, kernels: Optional[str] = None) -> Step:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    ce = LigerFusedLinearCrossEntropyLoss()
    loss = lambda: ce(inputs.head, inputs.draft, inputs.labels)  # noqa: E731
    return _liger(loss, "cross_entropy_loss_and_grad", kernels)


def cut_cross_entropy(inputs: Inputs) -> Step:
    """Drops gradients below a threshold, as it does by default."""
    from cut_cross_entropy import linear_cross_entropy

    return _step(lambda: linear_cross_entropy(inputs.draft, inputs.head, inputs.labels))


def quack_ce(inputs: Inputs) -> Step:
    """With the kernels that it chooses for these shapes; like the others it forms no gradient of a frozen head."""
    from quack.linear_cross_entropy import chunked_linear_cross_entropy, scaled_exp_lce_supported

    chunk = 4096  # its default
    fused = scaled_exp_lce_supported(inputs.draft, inputs.head, chunk, "mean")
    loss = lambda: chunked_linear_cross_entropy(inputs.draft, inputs.head, inputs.labels, chunk)  # noqa: E731
    return _step(loss, "scaled-exp" if fused else "chunked")


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


PACKAGES = (
    "torch", "triton", "liger-kernel", "cut-cross-entropy", "quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi",
)  # fmt: skip


def versions() -> Dict[str, str]:
    return {name: version(name) for name in PACKAGES if version(name)}


def unpack(folder: str, into: str) -> None:
    """Makes wheels, and .tar.xz archives of an unpacked site-packages, importable without installing them."""
    # By this name quack-kernels tells installed packages from a user's code.
    packages = os.path.join(into, "site-packages")
    for archive in sorted(pathlib.Path(folder).iterdir()):
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(packages)
        elif archive.name.endswith(".tar.xz"):
            with tarfile.open(archive) as tar:
                tar.extractall(packages, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    site.addsitedir(packages)  # reads .pth files too


def cuda_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
