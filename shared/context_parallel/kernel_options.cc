#include "shared/context_parallel/kernel_options.h"

#include <array>
#include <cstddef>

namespace cp {
namespace {

using enum KernelOption;

constexpr std::array kOptions = {
    KernelOptionInfo{dropout, "dropout", "P", "dropout_p, 1 - keep_prob",
                     "no kernel draws one mask whatever the split", "use dropout=0"},
    KernelOptionInfo{bias, "bias", "TENSOR", "attn_bias",
                     "an arbitrary bias has no form that travels with rows",
                     "use causal, window or documents"},
    KernelOptionInfo{
        attn_mask, "attn_mask", "TENSOR", "atten_mask",
        "the keys of a query are one range, which is all that slices of a split mask can say, and an "
        "arbitrary mask has a bit for each pair",
        "use causal, window, documents and query_offset, alone or together"},
    KernelOptionInfo{block_mask, "block_mask", "TENSOR", "BlockMask",
                     "the keys of a query are one range, and blocks of an arbitrary mask are none",
                     "use causal, window or documents; balance=cost deals their blocks out by their work"},
    KernelOptionInfo{score_mod, "score_mod", "FUNCTION", "",
                     "no kernel calls a function for each score, and none has its derivative",
                     "use softmax_scale, the one change of scores that kernels make"},
    KernelOptionInfo{alibi_slopes, "alibi_slopes", "SLOPES", "ALiBi",
                     "no kernel adds a slope times the distance of query and key to a score",
                     "put positions into q and k before attention, as rotary embeddings do"},
    KernelOptionInfo{pse, "pse", "TENSOR", "position shift encoding, pse_type",
                     "no kernel adds a shift by position to a score",
                     "put positions into q and k before attention, as rotary embeddings do"},
    KernelOptionInfo{softcap, "softcap", "CAP", "tanh of scores, logits_soft_cap",
                     "no kernel bounds scores by a tanh, and none has its derivative",
                     "use softcap=0, which is none"},
    KernelOptionInfo{sink_tokens, "sink_tokens", "TOKENS", "sliding window with sinks",
                     "the keys of a query are one range: first keys beside a window are two",
                     "use a window alone, or causal without a window"},
    KernelOptionInfo{
        sink_logits, "sink_logits", "LOGITS", "learnable sinks",
        "no kernel has a weight without a key in its softmax, and none has its gradient",
        "compute without, and scale out by 1 / (1 + exp(sink - lse)): lse is returned for each row"},
    KernelOptionInfo{prefix, "prefix", "TOKENS", "prefix LM, sparse_mode 5 and 6",
                     "causal hides later keys from every query, those of a prefix too",
                     "use causal, or no causal mask"},
    KernelOptionInfo{attention_chunk, "attention_chunk", "TOKENS", "chunked local attention",
                     "chunks are documents here, and have no word of their own",
                     "use documents that end at the multiples of the chunk, as 0/1024/2048"},
    KernelOptionInfo{window_right, "window_right", "TOKENS",
                     "window_size=(left, right), pre_tokens and next_tokens",
                     "a window reaches equally far to both sides, or with causal to the left alone",
                     "use window=W with causal for (W-1, 0), or without for (W-1, W-1)"},
    KernelOptionInfo{
        sparse_mode, "sparse_mode", "CODE", "",
        "a code of another library says nothing that a kernel here reads",
        "use causal with query_offset=0 for 2, causal for 3, window for 4, documents for 7 and 8, and no "
        "mask for 0; 1, 5 and 6 have no form"},
    KernelOptionInfo{
        return_weights, "return_weights", "", "return_debug_mask, softmax_return",
        "no kernel writes the matrix of weights, which has a value for each pair",
        "compute exp(softmax_scale q k - lse) for the pairs of interest: lse is returned for each row"},
    KernelOptionInfo{skip_lse, "skip_lse", "", "compute_log_sumexp=False",
                     "merges of partial results and gradients are made of lse",
                     "leave it out, and do not read lse"},
};

}  // namespace

std::span<const KernelOptionInfo> kernel_options() { return kOptions; }
const KernelOptionInfo& info(KernelOption option) { return kOptions[static_cast<std::size_t>(option)]; }

}  // namespace cp
