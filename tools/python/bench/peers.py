"""Public fused losses, as their documentation calls them. A package that can't be imported is reported by compare.py."""

from __future__ import annotations

import importlib.metadata
from typing import Any, Callable, Dict

import torch
from inputs import Inputs
from torch import Tensor

Step = Callable[[], Dict[str, Any]]


def _step(loss: Callable[[], Tensor]) -> Step:
    def step() -> Dict[str, Any]:
        value = loss()
        value.backward()
        return dict(loss=value.detach())

    return step


def liger_jsd(inputs: Inputs) -> Step:
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

    jsd = LigerFusedLinearJSD(jsd_beta=0.5)
    return _step(lambda: jsd(inputs.draft, inputs.head, inputs.target, inputs.head, None))


def liger_ce(inputs: Inputs) -> Step:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    ce = LigerFusedLinearCrossEntropyLoss()
    return _step(lambda: ce(inputs.head, inputs.draft, inputs.labels))


def cut_cross_entropy(inputs: Inputs) -> Step:
    """Drops gradients below a threshold, as it does by default."""
    from cut_cross_entropy import linear_cross_entropy

    return _step(lambda: linear_cross_entropy(inputs.draft, inputs.head, inputs.labels))


def quack_ce(inputs: Inputs) -> Step:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return _step(lambda: chunked_linear_cross_entropy(inputs.draft, inputs.head, inputs.labels))


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


PACKAGES = ("torch", "triton", "liger-kernel", "cut-cross-entropy", "quack-kernels", "nvidia-cutlass-dsl")


def versions() -> Dict[str, str]:
    return {name: version(name) for name in PACKAGES if version(name)}


def unpack(folder: str, into: str) -> None:
    """Makes wheels (and .tar.xz archives of unpacked ones) importable without installing them."""
    import pathlib
    import site
    import tarfile
    import zipfile

    for archive in sorted(pathlib.Path(folder).iterdir()):
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(into)
        elif archive.name.endswith(".tar.xz"):
            with tarfile.open(archive) as tar:
                tar.extractall(into, filter="data")
    site.addsitedir(into)  # reads .pth files too


def cuda_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
