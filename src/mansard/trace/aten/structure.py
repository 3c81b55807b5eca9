"""Recorded operators that do no work of their own: views and allocations, and wrappers around other operators."""

from __future__ import annotations

import re

from mansard.trace.aten.making import names

#: Views, metadata and bookkeeping: they touch no element.
VIEWS = frozenset(names(
        "_assert_scalar _assert_tensor_metadata _conj _debug_has_internal_overlap _functional_assert_scalar "
        "_functional_sym_constrain_range _functional_sym_constrain_range_for_size _fused_sdp_choice _fw_primal "
        "_has_compatible_shallow_copy_type _has_same_storage_numel _is_zerotensor _make_dual _mkldnn_reshape "
        "_mkldnn_transpose _neg_view _nnpack_available _reshape_alias _shape_as_tensor _unpack_dual _unsafe_view "
        "_use_cudnn_ctc_loss _use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss _version adjoint alias as_strided "
        "as_strided_ atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to can_cast chunk conj "
        "cudnn_is_acceptable data detach detach_ diagonal dim dsplit expand expand_as get_device hsplit imag is_coalesced "
        "is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_leaf is_neg is_pinned "
        "is_same_size is_set_to is_signed lift lift_fresh linalg_diagonal mH mT matrix_H meshgrid moveaxis movedim narrow "
        "numel numpy_T output_nr permute promote_types q_per_channel_axis q_per_channel_scales q_per_channel_zero_points "
        "q_scale q_zero_point qscheme real record_stream requires_grad_ resolve_conj resolve_neg result_type retain_grad "
        "retains_grad select set_ set_data size slice split split_with_sizes squeeze squeeze_ storage_offset stride "
        "swapaxes swapaxes_ swapdims swapdims_ sym_constrain_range sym_numel sym_size sym_storage_offset sym_stride t t_ "
        "tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes "
        "unsqueeze unsqueeze_ view view_as view_as_complex view_as_real vsplit"
    ))  # fmt: skip

#: Allocations: nothing is written.
ALLOCATIONS = frozenset(names(
        "_efficientzerotensor _empty_affine_quantized _resize_output_ empty empty_like empty_permuted empty_quantized "
        "empty_strided new_empty new_empty_strided resize_ resize_as_"
    ))  # fmt: skip

#: Composite operators: everything they do is recorded beneath them.
WRAPPERS = frozenset(names(
        "_assert_async _autocast_to_full_precision _autocast_to_reduced_precision _batch_norm_impl_index "
        "_batch_norm_impl_index_backward _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long "
        "_cast_Short _convolution_mode _embedding_bag_backward _euclidean_dist _is_all_true _is_any_true _logcumsumexp "
        "_native_multi_head_attention _pack_padded_sequence _pad_circular _pad_enum _pad_packed_sequence _safe_softmax "
        "_scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps _sobol_engine_draw _sparse_mm "
        "_thnn_differentiable_gru_cell_backward _thnn_differentiable_lstm_cell_backward _to_cpu "
        "_transformer_encoder_layer_fwd _weight_norm _weight_norm_interface absolute adaptive_avg_pool1d "
        "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d affine_grid_generator allclose alpha_dropout "
        "alpha_dropout_ arccos arccosh arcsin arcsinh arctan arctan2 arctanh argsort argwhere as_strided_scatter "
        "avg_pool1d bartlett_window batch_norm bilinear binary_cross_entropy_with_logits blackman_window block_diag "
        "cartesian_prod cdist chain_matmul chalf column_stack combinations concat concatenate contiguous conv1d conv2d "
        "conv3d conv_transpose1d conv_transpose2d conv_transpose3d copy corrcoef cosine_embedding_loss cosine_similarity "
        "cov cross_entropy_loss ctc_loss cumprod_backward cumulative_trapezoid deg2rad det diag diag_embed diagflat "
        "diagonal_backward diagonal_scatter diff dist dropout dropout_ dstack einsum embedding_backward embedding_bag "
        "embedding_sparse_backward expand_copy fake_quantize_per_channel_affine "
        "fake_quantize_per_channel_affine_cachemask_backward fake_quantize_per_tensor_affine "
        "fake_quantize_per_tensor_affine_cachemask_backward feature_alpha_dropout feature_dropout feature_dropout_ "
        "fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn "
        "fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq "
        "fft_rfftn fix flatten flatten_dense_tensors fliplr flipud frobenius_norm gather_backward glu_jvp gradient "
        "greater greater_equal grid_sampler group_norm gru gru_cell hamming_window hann_window hinge_embedding_loss "
        "hstack index_select_backward infinitely_differentiable_gelu_backward inner instance_norm inverse is_nonzero isin "
        "isreal istft kaiser_window kl_div kron l1_loss layer_norm ldexp less less_equal linalg_cholesky linalg_cond "
        "linalg_cross linalg_det linalg_eigvals linalg_eigvalsh linalg_lu_factor linalg_matmul linalg_matrix_norm "
        "linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_slogdet linalg_svdvals "
        "linalg_tensorinv linalg_tensorsolve linalg_vecdot linear log_sigmoid log_softmax logdet lstm lstm_cell "
        "margin_ranking_loss masked_scatter_backward masked_select_backward matmul matmul_backward matrix_exp "
        "matrix_power max_pool1d_with_indices max_pool2d max_pool2d_backward max_pool3d msort multilabel_margin_loss "
        "nanquantile negative nll_loss nll_loss2d nll_loss_nd nonzero_numpy norm_except_dim not_equal nuclear_norm "
        "one_hot outer pad pad_sequence pairwise_distance pdist pin_memory pinverse poisson_nll_loss qr quantile "
        "quantized_lstm rad2deg rand rand_like randint randint_like randn randn_like ravel reshape reshape_as rms_norm "
        "rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell rot90 row_stack rrelu scaled_dot_product_attention select_backward "
        "select_scatter slice_backward slice_scatter slogdet softmax special_expit special_log_softmax special_logit "
        "special_softmax stft sum_to_size svd tensordot tile to to_dense to_dense_backward to_mkldnn_backward "
        "trace_backward trapezoid trapz tril_indices triplet_margin_loss triu_indices type_as unflatten_dense_tensors "
        "unfold_backward value_selecting_reduction_backward vander vstack"
    )) - {""}  # fmt: skip

_AUTOGRAD = re.compile(r"(autograd::engine::|torch::autograd::|\w*Backward\d*$)")
_COMPILED = re.compile(r"(^|_)(cpp_fused|triton_|cpp_CppMicroGemm|cpp_bmm)")
_COLLECTIVE = re.compile(r"^(c10d(_functional)?::|_c10d_functional::|gloo:|nccl:|mpi:|record_param_comms$)")


def is_autograd(name: str) -> bool:
    """Return whether `name` is a node of the backward graph or the engine around it."""
    return bool(_AUTOGRAD.match(name))


def is_compiled(name: str) -> bool:
    """Return whether `name` is a kernel that a compiler wrote.

    >>> is_compiled("cpp_fused_add_mul_0"), is_compiled("aten::add")
    (True, False)
    """
    return bool(_COMPILED.search(name))


def is_collective(name: str) -> bool:
    """Return whether `name` is a collective operation of several processes."""
    return bool(_COLLECTIVE.match(name))


def is_range(name: str) -> bool:
    """Return whether `name` is a range of Python code, not an operator: it has no namespace."""
    return "::" not in name
