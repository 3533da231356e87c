"""PyTorch and the CUDA backend in one process: check_torch.py first|last [--errors]

`first`: PyTorch is imported and multiplies before the backend is loaded; `last`: the other way round. Either way both
then work on the same device, on PyTorch's stream and memory, and a step agrees with PyTorch's own in float64.

With --errors: how far the gradient of each tile format is from float64, far from the target and near it.

Needs ONEHEAD_LIBRARY and ONEHEAD_BACKEND_PATH.
"""
import ctypes
import os
import sys


def load_backend():
    """Opens a context by the C interface alone: the backend's cuBLASLt and runtime start before PyTorch's."""
    library = ctypes.CDLL(os.environ["ONEHEAD_LIBRARY"])

    class Options(ctypes.Structure):
        _fields_ = [("backend", ctypes.c_char_p), ("table", ctypes.c_void_p), ("device", ctypes.c_int32),
                    ("threads", ctypes.c_int32), ("rest", ctypes.c_void_p * 4)]

    class Error(ctypes.Structure):
        _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 500)]

    options, context, error = Options(backend=b"cuda"), ctypes.c_void_p(), Error()
    status = library.oh_context_open(ctypes.byref(options), ctypes.byref(context), ctypes.byref(error))
    assert status == 0, error.message
    return context


def libraries():
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if "cublasLt" in line or "cudart" in line})


def reference(torch, draft, head, target, mask, block, gamma=10.0):
    """kl with exp decay, normalised by the weights, in float64."""
    draft = draft.double().requires_grad_()
    z, t = draft @ head.double().T, target.double() @ head.double().T
    q, log_p = torch.softmax(t, -1), torch.log_softmax(z, -1)
    kl = (q * (torch.log_softmax(t, -1) - log_p)).sum(-1)
    slot = torch.arange(len(draft), device=draft.device) % block
    weight = mask.double().to(draft.device) * torch.exp(-(slot - 1) / gamma) * (slot >= 1)
    loss = (weight * kl).sum() / weight.sum()
    loss.backward()
    return loss.item(), draft.grad


def tensors(torch, rows, hidden, vocab, noise, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    target = normal(rows, hidden)
    draft = (target + noise * normal(rows, hidden)).bfloat16()
    head = (normal(vocab, hidden) * 3 / hidden**0.5).bfloat16()
    mask = (torch.rand(rows, generator=generator, device="cuda") < 0.8).float().cpu()
    return draft, head, target.bfloat16(), mask


def distance(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def check(torch, onehead):
    draft, head, target, mask = tensors(torch, 256, 192, 5003, 0.5, 1)
    want_loss, want_grad = reference(torch, draft, head, target, mask, 16)
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            leaf = draft.clone().requires_grad_()
            loss, _ = onehead.draft_loss(leaf, head, target, loss_mask=mask, tile="f32", grad_dtype=torch.float32)
            loss.backward()
            stream.synchronize()
        # bf16 logits tile none; bf16 gradient tile: 2^-9 an element, in any direction.
        assert abs(loss.item() - want_loss) < 1e-5 * want_loss, (loss.item(), want_loss)
        error = distance(leaf.grad, want_grad)
        assert error < 6e-3, error
        product = (draft.float() @ head.float().T).double()
        assert distance(product, draft.double() @ head.double().T) < 1e-2
    print(f"loss {loss.item():.6f}, float64 {want_loss:.6f}; gradient within {error:.2e}")


def errors(torch, onehead):
    for name, noise in (("far (0.5)", 0.5), ("near (0.05)", 0.05)):
        draft, head, target, mask = tensors(torch, 512, 5120, 248320, noise, 2)
        want_loss, want_grad = reference(torch, draft, head, target, mask, 16)
        torch.cuda.empty_cache()
        line = f"{name}: kl {want_loss:.4f}; relative error of dD:"
        for tile in ("bf16", "f16", "diff", "f32"):
            leaf = draft.clone().requires_grad_()
            loss, _ = onehead.draft_loss(leaf, head, target, loss_mask=mask, tile=tile, chunk=256, memory="16G",
                                         grad_dtype=torch.float32)
            loss.backward()
            torch.cuda.synchronize()
            line += f" {tile} {distance(leaf.grad, want_grad):.2e} (loss {abs(loss.item() - want_loss) / want_loss:.1e})"
        print(line)


def main():
    order = sys.argv[1]
    if order == "last":
        context = load_backend()
        print("loaded before PyTorch:", libraries())
    import torch

    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python"))
    import onehead

    check(torch, onehead)
    print("in the process:", libraries())
    if "--errors" in sys.argv:
        errors(torch, onehead)
    del order
    print("ok")


if __name__ == "__main__":
    main()
