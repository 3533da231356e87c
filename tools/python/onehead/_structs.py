"""The C ABI's plain data, field by field as in onehead/objective.h and onehead/onehead.h.

`tests/test_structs.py` compiles the headers and compares every size and offset with these.
"""

from __future__ import annotations

import ctypes as C

import torch

TERMS = ("ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "cap")
DECAYS = ("none", "exp", "power", "dpace")
NORMS = ("weights", "count", "none", "number")
LABELS = ("target", "given")
GAPS = ("stop", "skip")
OUTSIDE = (None, "drop", "keep")
POLICIES = ("auto", "cached", "recompute", "naive")
TILES = {"auto": -1, "f32": 0, "bf16": 1, "f16": 2, "diff": 3}

DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int32: 4,
    torch.int64: 5,
    torch.uint8: 6,
    torch.bool: 7,
}

TOP_K_LIST_MAX = 16
TOP_K_MAX = 64

PRODUCE_LOSS = 1 << 0
PRODUCE_GRAD = 1 << 1
PRODUCE_HEAD_GRAD = 1 << 2
PRODUCE_METRICS = 1 << 3
PRODUCE_OVERLAP = 1 << 4
PRODUCE_TOP_K = 1 << 5
PRODUCE_ROWS = 1 << 6
PRODUCE_TOP_K_ROWS = 1 << 7
PRODUCE_BIAS_GRAD = 1 << 9
PRODUCE_GRADIENTS = PRODUCE_GRAD | PRODUCE_HEAD_GRAD | PRODUCE_BIAS_GRAD

DEVICE_MASK = 1 << 0
DEVICE_LABEL = 1 << 1
DEVICE_TARGET_ROW = 1 << 2

CAP_HOST_MEMORY = 1 << 0

# enum of objective.h: where a step's sums lie.
SUM_LOSS_NUM = 0
SUM_WEIGHT = 1
SUM_MASK = 2
SUM_SUPERVISED = 3
SUM_NONFINITE = 4
SUM_FIRST_NONFINITE = 5
SUM_BLOCKS = 6
SUM_ALPHA = 7
SUM_TAU = 8
SUM_ENTROPY = 9
SUM_DRAFT_TOP1 = 10
SUM_TARGET_TOP1 = 11
SUM_TERM = 12
SUM_FIXED = SUM_TERM + len(TERMS)


class Error(C.Structure):
    """oh_error"""

    _fields_ = [("status", C.c_int), ("message", C.c_char * 500)]


class Objective(C.Structure):
    """oh_objective"""

    _fields_ = [
        ("lambda_", C.c_double * len(TERMS)),
        ("label_smoothing", C.c_double),
        ("z_loss", C.c_double),
        ("eta", C.c_double),
        ("decay_param", C.c_double),
        ("norm_value", C.c_double),
        ("upstream", C.c_double),
        ("block_size", C.c_int64),
        ("valid_columns", C.c_int64),
        ("terms", C.c_uint32),
        ("first_slot", C.c_int32),
        ("labels", C.c_int32),
        ("decay", C.c_int32),
        ("norm", C.c_int32),
        ("gap", C.c_int32),
        ("top_k_count", C.c_int32),
        ("top_k", C.c_int32 * TOP_K_LIST_MAX),
        ("reserved", C.c_int32),
    ]


class ContextOptions(C.Structure):
    """oh_context_options"""

    ALLOC = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_uint64)
    FREE = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)
    LOG = C.CFUNCTYPE(None, C.c_void_p, C.c_char_p)
    _fields_ = [
        ("backend", C.c_char_p),
        ("table", C.c_void_p),
        ("device", C.c_int32),
        ("threads", C.c_int32),
        ("alloc", ALLOC),
        ("free", FREE),
        ("user", C.c_void_p),
        ("log", LOG),
    ]


class Request(C.Structure):
    """oh_request"""

    _fields_ = [
        ("rows", C.c_int64),
        ("target_rows", C.c_int64),
        ("hidden", C.c_int64),
        ("vocab", C.c_int64),
        ("vocab_valid", C.c_int64),
        ("target_hidden", C.c_int64),
        ("target_vocab", C.c_int64),
        ("draft_to_target", C.c_void_p),
        ("outside", C.c_int32),
        ("hidden_dtype", C.c_int32),
        ("weight_dtype", C.c_int32),
        ("target_weight_dtype", C.c_int32),
        ("grad_dtype", C.c_int32),
        ("has_bias", C.c_int32),
        ("has_target_bias", C.c_int32),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("target_scale", C.c_float),
        ("target_softcap", C.c_float),
        ("objective", Objective),
        ("produce", C.c_uint32),
        ("policy", C.c_int32),
        ("tile", C.c_int32),
        ("weight_trains", C.c_int32),
        ("external_workspace", C.c_int32),
        ("norm_on_device", C.c_int32),
        ("device_inputs", C.c_uint32),
        ("chunk", C.c_int64),
        ("memory", C.c_int64),
        ("distinct_target_rows", C.c_int64),
        ("lm_head", C.c_void_p),
        ("lm_head_ld", C.c_int64),
    ]


class Inputs(C.Structure):
    """oh_inputs"""

    _fields_ = [
        ("rows", C.c_int64),
        ("target_rows", C.c_int64),
        ("draft_hidden", C.c_void_p),
        ("draft_ld", C.c_int64),
        ("target_hidden", C.c_void_p),
        ("target_ld", C.c_int64),
        ("lm_head", C.c_void_p),
        ("lm_head_ld", C.c_int64),
        ("target_lm_head", C.c_void_p),
        ("target_lm_head_ld", C.c_int64),
        ("bias", C.c_void_p),
        ("target_bias", C.c_void_p),
        ("target_row", C.c_void_p),
        ("label", C.c_void_p),
        ("mask", C.c_void_p),
        ("target_row_dtype", C.c_int32),
        ("label_dtype", C.c_int32),
        ("mask_dtype", C.c_int32),
        ("reserved", C.c_int32),
        ("norm", C.c_void_p),
        ("workspace", C.c_void_p),
        ("workspace_bytes", C.c_uint64),
        ("stream", C.c_void_p),
    ]


class Outputs(C.Structure):
    """oh_outputs"""

    _fields_ = [
        ("draft_grad", C.c_void_p),
        ("draft_grad_ld", C.c_int64),
        ("lm_head_grad", C.c_void_p),
        ("lm_head_grad_ld", C.c_int64),
        ("bias_grad", C.c_void_p),
        ("row_loss", C.c_void_p),
        ("weight", C.c_void_p),
        ("label", C.c_void_p),
        ("argmax", C.c_void_p),
        ("rank", C.c_void_p),
        ("topk_id", C.c_void_p),
        ("topk_logprob", C.c_void_p),
    ]


class TopKResult(C.Structure):
    """oh_top_k_result"""

    _fields_ = [
        ("k", C.c_int32),
        ("reserved", C.c_int32),
        ("hits", C.c_int64),
        ("streak_sum", C.c_int64),
        ("rate", C.c_double),
        ("streak", C.c_double),
    ]


class Results(C.Structure):
    """oh_results"""

    _fields_ = [
        ("rows", C.c_int64),
        ("supervised", C.c_int64),
        ("blocks", C.c_int64),
        ("nonfinite_rows", C.c_int64),
        ("first_nonfinite_row", C.c_int64),
        ("weight_sum", C.c_double),
        ("loss", C.c_double),
        ("loss_num", C.c_double),
        ("loss_den", C.c_double),
        ("terms", C.c_double * len(TERMS)),
        ("grad_norm", C.c_double),
        ("grad_abs_max", C.c_double),
        ("top_k", TopKResult * TOP_K_LIST_MAX),
        ("top_k_count", C.c_int32),
        ("reserved", C.c_int32),
        ("slot_hits", C.POINTER(C.c_double)),
        ("slot_count", C.POINTER(C.c_double)),
        ("block_size", C.c_int64),
        ("eal", C.c_double),
        ("alpha", C.c_double),
        ("tau", C.c_double),
        ("draft_entropy", C.c_double),
        ("draft_top1", C.c_double),
        ("target_top1", C.c_double),
        ("projections_draft", C.c_int64),
        ("projections_target", C.c_int64),
        ("gemms", C.c_int64),
        ("tile_reads", C.c_int64),
    ]


class Node(C.Structure):
    """oh_node"""

    _fields_ = [
        ("op", C.c_int32),
        ("k", C.c_int32),
        ("stage", C.c_int32),
        ("merged", C.c_int32),
        ("input_count", C.c_int32),
        ("inputs", C.c_int32 * 12),
        ("consumers", C.c_uint32),
        ("reserved", C.c_uint32),
        ("flops", C.c_double),
        ("bytes", C.c_double),
    ]


class PlanSummary(C.Structure):
    """oh_plan_summary"""

    _fields_ = [
        ("policy", C.c_int32),
        ("tile", C.c_int32),
        ("chunk", C.c_int64),
        ("chunks", C.c_int64),
        ("panel", C.c_int64),
        ("weight_panel", C.c_int64),
        ("weight_converted", C.c_int32),
        ("stages", C.c_int32),
        ("projections_draft", C.c_int64),
        ("projections_target", C.c_int64),
        ("gemms", C.c_int64),
        ("flops", C.c_double),
        ("workspace_bytes", C.c_int64),
        ("weight_bytes", C.c_int64),
        ("workspace_cached", C.c_int64),
        ("workspace_recompute", C.c_int64),
        ("memory", C.c_int64),
        ("operand_dtype", C.c_int32),
        ("grad_dtype", C.c_int32),
        ("tile_reason", C.c_char * 160),
    ]


class BackendCandidate(C.Structure):
    """oh_backend_candidate"""

    _fields_ = [("name", C.c_char * 64), ("path", C.c_char * 4096), ("verdict", C.c_char * 300)]


class DeviceInfo(C.Structure):
    """oh_device_info"""

    _fields_ = [
        ("name", C.c_char * 128),
        ("kernel", C.c_char * 256),
        ("memory_total", C.c_int64),
        ("memory_free", C.c_int64),
        ("threads", C.c_int32),
        ("reserved", C.c_int32),
    ]


class BackendHead(C.Structure):
    """The fields of oh_backend before its functions."""

    _fields_ = [
        ("size", C.c_uint64),
        ("minor", C.c_uint32),
        ("caps", C.c_uint32),
        ("gemm_kinds", C.c_uint32),
        ("tile_formats", C.c_uint32),
        ("name", C.c_char_p),
        ("build", C.c_char_p),
        ("sanitizer", C.c_char_p),
    ]
