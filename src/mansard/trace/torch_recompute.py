"""Which recorded operations are executed again to save memory (activation checkpointing), and which of them gave up."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mansard.trace.aten.making import names
from mansard.trace.recorders.torch_recompute import RECOMPUTE, STOPPED

# How an operation comes to be executed again: not at all, inside a re-entrant checkpoint function, inside our range.
NOT, BY_FUNCTION, BY_MARK = range(3)

#: The backward of a re-entrant checkpoint runs the region's forward first, then the backward pass in an engine of its own.
#: Megatron, DeepSpeed and FairScale name theirs alike.
_FUNCTION = re.compile(r"^\w*CheckpointFunctionBackward$")
_ENGINE = "autograd::engine::evaluate_function"

#: Operators that save one of their results for the backward pass, hence after they have computed it.
#: Source: PyTorch 2.13, generated autograd nodes (torch/csrc/autograd/generated/Functions.h).
_SAVES_A_RESULT = frozenset(names(
        "exp exp2 expm1 sqrt rsqrt reciprocal sigmoid tanh tan relu sgn hypot polar copysign elu_ celu_ leaky_relu_ "
        "_softmax _log_softmax _masked_softmax _safe_softmax logsumexp logcumsumexp cumprod cummax cummin prod amax amin "
        "max min median nanmedian mode kthvalue sort topk norm linalg_vector_norm dist std std_mean _pdist_forward "
        "_cdist_forward native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm "
        "miopen_batch_norm _fused_rms_norm _weight_norm_interface native_dropout _fused_dropout log_sigmoid_forward "
        "rrelu_with_noise nll_loss_forward nll_loss2d_forward _ctc_loss _cudnn_ctc_loss max_pool2d_with_indices "
        "max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
        "mkldnn_max_pool2d mkldnn_max_pool3d _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable _flash_attention_forward "
        "_efficient_attention_forward _cudnn_attention_forward _embedding_bag mkldnn_rnn_layer _cudnn_rnn miopen_rnn "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell scatter_reduce index_reduce segment_reduce linalg_cholesky_ex "
        "linalg_inv_ex linalg_qr _linalg_svd _linalg_slogdet _linalg_det _linalg_solve_ex linalg_solve_triangular "
        "linalg_lu linalg_lu_factor_ex linalg_pinv"
    ))  # fmt: skip


def recompute_state(name: str, above: int) -> int:
    """Return how an event comes to be executed again, from its name and the state of the event around it.

    >>> recompute_state("CheckpointFunctionBackward", NOT) == recompute_state("aten::mm", BY_FUNCTION) == BY_FUNCTION
    True

    The engine inside a checkpoint function runs the backward pass proper; inside our range it is a part of the region:

    >>> recompute_state("autograd::engine::evaluate_function: MmBackward0", BY_FUNCTION) == NOT
    True
    >>> recompute_state("autograd::engine::evaluate_function: MmBackward0", BY_MARK) == BY_MARK
    True
    """
    if name == RECOMPUTE or above == BY_MARK:
        return BY_MARK
    if name.startswith(_ENGINE):
        return NOT
    if _FUNCTION.match(name):
        return BY_FUNCTION
    return above


def given_up(events: Sequence[str], parents: Sequence[int]) -> list[int]:
    """Return the events that the end of a repetition kept from computing anything.

    An operator that saves only its operands does so before it computes; where the repetition ends with the last saved
    tensor, such an operator and everything around it was left without a result.

    Args:
        events: Names of the events of one thread, parents before children.
        parents: The event around each, -1 for none.

    >>> given_up(["mansard::recompute", "aten::linear", "aten::addmm", "mansard::recompute_stopped"], [-1, 0, 1, 2])
    [2, 1]
    >>> given_up(["mansard::recompute", "aten::_softmax", "mansard::recompute_stopped"], [-1, 0, 1])
    []
    """
    found: list[int] = []
    for i, name in enumerate(events):
        if name != STOPPED:
            continue
        above = parents[i]
        last = events[above] if above >= 0 else ""
        if not last.startswith("aten::") or _saves_a_result(last.removeprefix("aten::")):
            continue
        while above >= 0 and events[above] != RECOMPUTE:
            found.append(above)
            above = parents[above]
    return found


def _saves_a_result(short: str) -> bool:
    return short in _SAVES_A_RESULT or short.removesuffix("_") in _SAVES_A_RESULT
