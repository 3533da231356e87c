"""The command's options as one immutable value, and the C request that it becomes."""

from __future__ import annotations

import ast
import ctypes as C
import dataclasses
import functools
import math
import numbers
import re
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Tuple, Union

import torch

from . import _structs as S
from ._library import InvalidArgument, check, library

Terms = Union[str, Mapping[str, float], None]
Decay = Union[str, Tuple[str, float], Tuple[str]]
Memory = Union[int, str, None]

METRICS = ("all", "one-read", "none")
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Everything about a step but its tensors. Plain, hashable values, as `functions.py` documents them."""

    terms: str
    decay: str
    topk: Tuple[int, ...]
    labels: str
    norm: str
    gap: str
    outside: str
    block_size: int
    first_slot: int
    eta: float
    label_smoothing: float
    z_loss: float
    scale: float
    softcap: float
    target_scale: float
    target_softcap: float
    vocab_valid: int
    policy: str
    chunk: int
    memory: int
    tile: str
    metrics: str
    rows: bool
    grad_dtype: str
    backend: Optional[str]
    threads: int

    @functools.cached_property
    def _hash(self) -> int:
        return hash(dataclasses.astuple(self))  # once: every step looks its plan up by its options

    def __hash__(self) -> int:
        return self._hash

    def encode(self) -> str:
        """A text that `decode` reads: what an opaque operation can carry."""
        return repr(tuple([_static(getattr(self, name)) for name in _FIELDS]))  # in words that torch.compile can follow

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def decode(text: str) -> "Options":
        return Options(*ast.literal_eval(text))

    @property
    def term_names(self) -> Tuple[str, ...]:
        return tuple([term.partition("=")[0] for term in self.terms.split(",") if term])

    @property
    def produce(self) -> int:
        """OH_PRODUCE_* bits of a loss without its gradients."""
        produce = S.PRODUCE_LOSS
        if self.metrics != "none":
            produce |= S.PRODUCE_METRICS | (S.PRODUCE_TOP_K if self.topk else 0)
        if self.metrics == "all":
            produce |= S.PRODUCE_OVERLAP
        if self.rows:
            produce |= S.PRODUCE_ROWS | ((S.PRODUCE_TOP_K | S.PRODUCE_TOP_K_ROWS) if self.topk else 0)
        return produce


_FIELDS = tuple(field.name for field in dataclasses.fields(Options))


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value in choices:
        return value
    raise InvalidArgument(f"{name} {value!r}: expected one of {', '.join(choices)}")


def terms_text(terms: Terms) -> str:
    if isinstance(terms, str):
        return terms.replace(" ", "")
    if not isinstance(terms, Mapping):
        raise InvalidArgument(f'terms {terms!r}: expected a dict of factors, or text like "kl=1,cap=0.1"')
    return ",".join(f"{name}={float(weight)!r}" for name, weight in terms.items())


def _static(value: Any) -> Any:
    """A number that torch.compile has made dynamic, as the constant that it is: options have no dynamic ones."""
    if compiling() and isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.fx.experimental.symbolic_shapes.guard_scalar(value)
    return value


def _decay_text(decay: Decay) -> str:
    if decay is None or isinstance(decay, str):
        return decay or "none"
    if not isinstance(decay, (tuple, list)) or not decay:
        raise InvalidArgument(f'decay {decay!r}: expected "none", or a pair like ("exp", 10.0)')
    return ":".join([str(decay[0])] + [repr(float(_static(value))) for value in decay[1:]])


#: Decays with a parameter, and whether a number is one.
_DECAYS: Mapping[str, Callable[[float], bool]] = {
    "exp": lambda gamma: 0 < gamma < math.inf,
    "power": lambda gamma: 0 < gamma < math.inf,
    "dpace": lambda a: 0 <= a <= 1,
}


def decay_parts(decay: Decay) -> Tuple[str, float]:
    """Kind and parameter, 0 for none; as the library reads it, in words that torch.compile can follow."""
    text = _decay_text(decay)
    kind, _, number = text.partition(":")
    if kind == "none" and not number:
        return kind, 0.0
    try:
        parameter = float(number)
    except ValueError:
        parameter = math.nan
    if kind not in _DECAYS or not _DECAYS[kind](parameter):
        raise InvalidArgument(f"decay {text!r}: expected none, exp:GAMMA, power:GAMMA or dpace:A")
    return kind, parameter


def memory_bytes(memory: Memory) -> int:
    """Bytes of a budget as the command writes it: 2147483648, "2G", "512M"; 0 for None."""
    if memory is None:
        return 0
    match = re.fullmatch(r"(\d+)([KMG]?)", memory if isinstance(memory, str) else str(memory))
    size = int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)] if match else -1
    if not 0 <= size <= _INT64_MAX:
        raise InvalidArgument(f"memory {memory!r}: expected a whole number of bytes, or one with K, M or G behind it")
    return size


def integer(name: str, value: Any, least: int = 0, most: int = _INT32_MAX) -> int:
    """A size or count; what the library's integer can't hold would be another number there."""
    number = value if isinstance(value, numbers.Real) else math.nan
    if not least <= number <= most or number != int(number):
        raise InvalidArgument(f"{name} {value!r}: expected an integer from {least} to {most}")
    return int(number)


def _top_k(topk: Optional[Sequence[int]]) -> Tuple[int, ...]:
    if isinstance(topk, (int, str)):
        raise InvalidArgument(f"topk {topk!r}: expected a list of sizes, like (1, 4, 8)")
    return tuple(sorted({integer("topk", k, 1, S.TOP_K_MAX) for k in topk})) if topk else ()


def check_norm(norm: Any) -> float:
    """A number as N."""
    if not (isinstance(norm, numbers.Real) and 0 <= norm < math.inf):
        raise InvalidArgument(
            f"norm {norm!r}: expected weights, count, none, a finite number that is not negative, or a tensor"
        )
    return float(norm)


def norm_rule(norm: Any) -> str:
    """The rule that the plan applies; a caller's own N is applied outside of it, so that it can change every step."""
    if isinstance(norm, str):
        return choice("norm", norm, ("weights", "count", "none"))
    if isinstance(norm, torch.Tensor):
        if norm.numel() != 1:
            raise InvalidArgument(f"norm of shape {tuple(norm.shape)}: expected a scalar")
        if norm.requires_grad:
            raise InvalidArgument("norm requires a gradient, and N is a constant: pass norm.detach()")
        return "none"
    check_norm(norm)
    return "none"


#: Whether this PyTorch can put an operation of our own into a compiler's graph.
TRACED = hasattr(torch.library, "custom_op")


def compiling() -> bool:
    """Whether torch.compile is tracing the call, on versions that can put an opaque operation into its graph."""
    return TRACED and torch.compiler.is_compiling()


_PLAIN = frozenset((type(None), bool, int, float, str, torch.dtype))


def are_plain(values: Iterable[Any]) -> bool:
    """Whether values, one by one or in tuples, are of types that can't change, and that mean the same where they and their
    types are equal: a tensor can do neither."""
    return all(
        type(value) in _PLAIN or type(value) is tuple and _PLAIN.issuperset(map(type, value)) for value in values
    )


def options_of(*, terms: Terms, norm: Any, **rest: Any) -> Options:
    """make_options, remembered: a training loop asks for the same options every step."""
    terms, norm = terms_text(terms), norm_rule(norm)
    if compiling():
        return make_options(terms=terms, norm=norm, **rest)
    make = _remembered if are_plain(rest.values()) else make_options
    return make(terms=terms, norm=norm, **rest)


def make_options(
    *,
    terms: Terms,
    decay: Decay,
    norm: Any,
    topk: Sequence[int],
    labels: str,
    gap: str = "stop",
    outside: str = "drop",
    block_size: int = 16,
    first_slot: int = 1,
    eta: float = 3.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    target_scale: Optional[float] = None,
    target_softcap: Optional[float] = None,
    vocab_valid: Optional[int] = None,
    policy: str = "cached",
    chunk: Optional[int] = None,
    memory: Memory = None,
    tile: Optional[str] = None,
    metrics: str = "all",
    rows: bool = False,
    grad_dtype: Optional[torch.dtype] = None,
    backend: Optional[str] = None,
    threads: Optional[int] = None,
) -> Options:
    """Options from the arguments of the public functions."""
    if grad_dtype is not None and grad_dtype not in _DTYPE_NAMES:
        raise InvalidArgument(f"grad_dtype {grad_dtype}: expected torch.float32, torch.bfloat16 or torch.float16")
    scale = 1.0 if scale is None else float(scale)
    softcap = 0.0 if softcap is None else float(softcap)
    return Options(
        terms=terms_text(terms),
        decay=_decay_text(decay),
        topk=_top_k(topk),
        labels=choice("labels", labels, S.LABELS),
        norm=norm_rule(norm),
        gap=choice("gap", gap, S.GAPS),
        outside=choice("outside", outside, S.OUTSIDE[1:]),
        block_size=integer("block_size", block_size, 1),
        first_slot=integer("first_slot", first_slot),
        eta=float(eta),
        label_smoothing=float(label_smoothing),
        z_loss=float(z_loss),
        scale=scale,
        softcap=softcap,
        target_scale=scale if target_scale is None else float(target_scale),
        target_softcap=softcap if target_softcap is None else float(target_softcap),
        vocab_valid=integer("vocab_valid", vocab_valid or 0, most=_INT64_MAX),
        policy=choice("policy", policy, S.POLICIES),
        chunk=integer("chunk", chunk or 0, most=_INT64_MAX),
        memory=memory_bytes(memory),
        tile=choice("tile", tile or "auto", tuple(S.TILES)),
        metrics=choice("metrics", metrics, METRICS),
        rows=bool(rows),
        grad_dtype=_DTYPE_NAMES[grad_dtype or torch.float32],
        backend=backend,
        threads=integer("threads", threads or 0),
    )


_remembered = functools.lru_cache(maxsize=256, typed=True)(make_options)  # 0.0 is no size, 0 is


@functools.lru_cache(maxsize=256)
def request_of(options: Options) -> S.Request:
    """The C request with all but shapes, dtypes and wishes. Shared: copy before changing."""
    lib, error, request = library(), S.Error(), S.Request()
    lib.oh_request_init(C.byref(request))
    objective = request.objective
    check(lib.oh_objective_set_terms(objective, options.terms.encode(), error), error)
    check(lib.oh_objective_set_decay(objective, options.decay.encode(), error), error)
    objective.top_k_count = 0
    if options.topk:
        check(lib.oh_objective_set_top_k(objective, ",".join(map(str, options.topk)).encode(), error), error)
    objective.labels = S.LABELS.index(options.labels)
    objective.norm = S.NORMS.index(options.norm)
    objective.gap = S.GAPS.index(options.gap)
    request.outside = S.OUTSIDE.index(options.outside)
    objective.block_size = options.block_size
    objective.first_slot = options.first_slot
    objective.eta = options.eta
    objective.label_smoothing = options.label_smoothing
    objective.z_loss = options.z_loss
    request.scale, request.softcap = options.scale, options.softcap
    request.target_scale, request.target_softcap = options.target_scale, options.target_softcap
    request.vocab_valid = options.vocab_valid
    request.policy = S.POLICIES.index(options.policy)
    request.tile = S.TILES[options.tile]
    request.chunk = options.chunk
    request.memory = options.memory
    request.grad_dtype = S.DTYPES[getattr(torch, options.grad_dtype)]
    return request


def copy_request(options: Options) -> S.Request:
    """A request of the caller's own to complete."""
    return S.Request.from_buffer_copy(request_of(options))
