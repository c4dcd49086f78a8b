#include "shared/context_parallel/kernel_options.h"

#include <array>
#include <cstddef>

namespace cp {
namespace {

using enum KernelOption;

constexpr std::array kOptions = {
    KernelOptionInfo{bias, "bias", "TENSOR", "attn_bias",
                     "an arbitrary bias cannot be split and sent with the rows",
                     "use causal, window or documents"},
    KernelOptionInfo{attn_mask, "attn_mask", "TENSOR", "atten_mask",
                     "each query sees one range of keys, and an arbitrary mask has a bit for each pair",
                     "use causal, window, documents and query_offset, alone or together"},
    KernelOptionInfo{block_mask, "block_mask", "TENSOR", "BlockMask",
                     "each query sees one range of keys, and blocks of an arbitrary mask are not one range",
                     "use causal, window or documents; balance=cost deals their blocks out by their work"},
    KernelOptionInfo{score_mod, "score_mod", "FUNCTION", "",
                     "no kernel calls a function for each score, or computes its derivative",
                     "use softmax_scale and softcap, the changes of scores that kernels make"},
    KernelOptionInfo{alibi_slopes, "alibi_slopes", "SLOPES", "ALiBi",
                     "no kernel adds a slope times the distance between query and key to a score",
                     "put positions into q and k before attention, as rotary embeddings do"},
    KernelOptionInfo{pse, "pse", "TENSOR", "position shift encoding, pse_type",
                     "no kernel adds a shift by position to a score",
                     "put positions into q and k before attention, as rotary embeddings do"},
    KernelOptionInfo{
        sink_tokens, "sink_tokens", "TOKENS", "sliding window with sinks",
        "each query sees one range of keys, and sinks beside a window are a second one",
        "use a window alone, causal without a window, or sinks, which are numbers and not tokens"},
    KernelOptionInfo{prefix, "prefix", "TOKENS", "prefix LM, sparse_mode 5 and 6",
                     "causal hides later keys from every query, and so those of a prefix too",
                     "use causal, or no causal mask"},
    KernelOptionInfo{window_right, "window_right", "TOKENS",
                     "window_size=(left, right), pre_tokens and next_tokens",
                     "a window reaches equally far to both sides, or with causal only to the left",
                     "use window=W with causal for (W-1, 0), or without causal for (W-1, W-1)"},
    KernelOptionInfo{
        sparse_mode, "sparse_mode", "CODE", "", "no kernel here reads the codes of another library",
        "use causal with query_offset=0 for 2, causal for 3, window for 4, documents for 7 and 8, and no "
        "mask for 0; nothing replaces 1, 5 and 6"},
    KernelOptionInfo{
        return_weights, "return_weights", "", "return_debug_mask, softmax_return",
        "no kernel writes the matrix of weights, which has a value for each pair",
        "compute exp(softmax_scale q k - lse) for the pairs of interest: lse is returned for each row"},
    KernelOptionInfo{skip_lse, "skip_lse", "", "compute_log_sumexp=False",
                     "merges of partial results and gradients need lse", "leave it out, and do not read lse"},
};

}  // namespace

std::span<const KernelOptionInfo> kernel_options() { return kOptions; }
const KernelOptionInfo& info(KernelOption option) { return kOptions[static_cast<std::size_t>(option)]; }

}  // namespace cp
