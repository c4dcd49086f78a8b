#include "cli/cpsim/attention_flags.h"

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/flags.h"
#include "cli/cpsim/kernel_option_flags.h"
#include "shared/base/error.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::cli {
namespace {

using Job = proto::Attention;
using Flags = ScenarioFlags<Job>;
using Text = const std::string&;

// A flag for a whole number. It may have other libraries' names behind its own: "--chunk,--attention-chunk".
template <class Set>
void add_number(FlagSet app, Flags& flags, const char* flag, const char* help, std::int64_t least, Set set) {
  add_field(app, flags, flag, "N", help,
            [name = std::string_view(flag).substr(0, std::string_view(flag).find(',')), least, set](
                Job& job, Text text) { set(job, parse_whole(name, text, least)); });
}

void add_shape_flags(FlagSet app, Flags& flags) {
  add_field(app, flags, "--mesh", "MESH", "The ranks that split the sequence, by axes: cp=8, or co=2,ds=4",
            [](Job& job, Text text) { job.set_mesh(text); });
  add_number(app, flags, "--seq-len", "How many queries there are, in tokens", 1,
             [](Job& job, std::int64_t n) { job.set_seq_len(n); });
  add_number(app, flags, "--kv-len", "How many keys there are, in tokens [as many as queries]", 1,
             [](Job& job, std::int64_t n) { job.set_kv_len(n); });
  add_number(app, flags, "--batch", "How many sequences there are [1]", 1,
             [](Job& job, std::int64_t n) { job.set_batch(n); });
  add_number(app, flags, "--q-heads", "How many heads the queries have [8]", 1,
             [](Job& job, std::int64_t n) { job.set_q_heads(n); });
  add_number(app, flags, "--kv-heads", "How many heads the keys and values have [as many as the queries]", 1,
             [](Job& job, std::int64_t n) { job.set_kv_heads(n); });
  add_number(app, flags, "--head-dim", "Elements of a query and a key in each head [64]", 1,
             [](Job& job, std::int64_t n) { job.set_head_dim(n); });
  add_number(app, flags, "--v-head-dim", "Elements of a value in each head [as --head-dim]", 1,
             [](Job& job, std::int64_t n) { job.set_v_head_dim(n); });
  add_field(app, flags, "--dtype", "DTYPE", "The dtype of the inputs: f32, f16 or bf16 [f32]",
            [](Job& job, Text text) { job.set_dtype(sim::parse_proto_dtype("--dtype", text)); });
  add_field(app, flags, "--format", "FORMAT",
            "The order of the tensors' dimensions: bshd, bnsd or sbhd [bshd]",
            [](Job& job, Text text) { job.set_format(text); });
  add_field(app, flags, "--softmax-scale", "X", "The factor of the scores [1/sqrt(head dim)]",
            [](Job& job, Text text) { job.set_softmax_scale(parse_real("--softmax-scale", text)); });
}

void add_mask_flags(FlagSet app, Flags& flags, bool& padding) {
  add_switch(app, flags, "--causal", "Each query sees no key behind its own position",
             [](Job& job) { job.set_causal(true); });
  add_number(app, flags, "--window", "Each query sees only keys that are less than N tokens away", 1,
             [](Job& job, std::int64_t n) { job.set_window(n); });
  add_number(app, flags, "--chunk,--attention-chunk",
             "Each query sees only keys of its own chunk: positions are cut at the multiples of N", 1,
             [](Job& job, std::int64_t n) { job.set_chunk(n); });
  add_field(app, flags, "--documents", "ENDS",
            "Documents are packed into the sequence. ENDS are their cu_seqlens: 0/10/50, or for each "
            "sequence of the "
            "batch: 0/10/50;0/20/50",
            [](Job& job, Text text) { job.set_documents(text); });
  app.add_flag("--padding", padding,
               "The documents may end before the keys do; the tokens behind them are padding");
  add_field(app, flags, "--query-offset", "N",
            "The position of the first query among the keys [the last query is beside the last key]",
            [](Job& job, Text text) { job.set_query_offset(parse_int(text, "--query-offset")); });
}

void add_score_flags(FlagSet app, Flags& flags) {
  add_field(app, flags, "--softcap,--logits-soft-cap", "CAP",
            "Scores are bounded by CAP: s becomes CAP * tanh(s / CAP) [0, which bounds nothing]",
            [](Job& job, Text text) { job.set_softcap(parse_real("--softcap", text)); });
  add_switch(app, flags, "--sinks,--sink-logits",
             "Each query head has a learnt number that takes a share of the softmax (gpt-oss)",
             [](Job& job) { job.set_sinks(true); });
  add_field(
      app, flags, "--dropout,--dropout-p", "P",
      "Weights become 0 with probability P; which ones does not depend on the strategy or the ranks [0]",
      [](Job& job, Text text) { job.set_dropout(parse_real("--dropout", text)); });
}

void add_latent_flags(FlagSet app, Flags& flags) {
  add_number(
      app, flags, "--latent,--kv-lora-rank",
      "Keys and values are expanded from latent rows of N elements (MLA of DeepSeek) [0: they are given]", 0,
      [](Job& job, std::int64_t n) { job.set_latent(n); });
  add_number(app, flags, "--rope-dim,--qk-rope-head-dim",
             "How many elements of each key are its latent row's rotated part, which all heads share [0]", 0,
             [](Job& job, std::int64_t n) { job.set_rope_dim(n); });
}

}  // namespace

void add_problem_flags(FlagSet app, Flags& flags, bool& padding) {
  add_shape_flags(app, flags);
  add_mask_flags(app, flags, padding);
  add_score_flags(app, flags);
  add_latent_flags(app, flags);
  add_kernel_option_flags(app, flags);
}

void require_covered(const AttentionProblem& problem, const Flags& flags, bool padding) {
  if (padding || !flags.scenario.empty()) return;
  std::vector<std::vector<std::int64_t>> lists = problem.cu_seqlens_of_entry;
  if (!problem.cu_seqlens.empty()) lists.push_back(problem.cu_seqlens);
  for (const std::vector<std::int64_t>& ends : lists) {
    if (ends.back() == problem.kv_len) continue;
    throw InvalidInput(str("--documents ", documents_text(problem), ": ", join(ends, "/"), " ends at ",
                           ends.back(), ", so ", problem.kv_len - ends.back(), " of ", problem.kv_len,
                           " keys belong to no document; let the last document end at ", problem.kv_len,
                           ", or add --padding if no query shall see these keys"));
  }
}

void add_strategy_flags(FlagSet app, Flags& flags) {
  add_field(app, flags, "--strategy", "NAME",
            "How the ranks share the work: ulysses, all_gather, ring, double_ring, need_only, pass_q, "
            "ulysses_all_gather or ulysses_ring [ring]",
            [](Job& job, Text text) { job.set_strategy(text); });
  add_field(
      app, flags, "--balance", "BALANCE",
      "Which rank holds which rows: contiguous, head_tail, striped[:BLOCK], cost[:BLOCK], head_tail_exchange "
      "or per_document:head_tail [contiguous; with --strategies all, one that suits each strategy]",
      [](Job& job, Text text) { job.set_balance(text); });
  const auto degree = [](const char* flag, Text text) {
    return static_cast<std::int32_t>(parse_whole(flag, text, 1, std::numeric_limits<std::int32_t>::max()));
  };
  add_field(app, flags, "--ulysses-degree", "N",
            "How many ranks trade rows for heads, in a strategy with Ulysses",
            [degree](Job& job, Text text) { job.set_ulysses_degree(degree("--ulysses-degree", text)); });
  add_field(app, flags, "--inner-ring", "N", "How many ranks each inner ring of a double ring has",
            [degree](Job& job, Text text) { job.set_inner_ring(degree("--inner-ring", text)); });
  add_field(app, flags, "--axis-order", "ORDER",
            "What neighbouring ranks form: a Ulysses group (ulysses_inner) or a ring (ring_inner) "
            "[ulysses_inner]",
            [](Job& job, Text text) { job.set_axis_order(text); });
  add_field(app, flags, "--rotation", "HOW",
            "How the blocks of a ring travel: exchange or all_gather [exchange]",
            [](Job& job, Text text) { job.set_rotation(text); });
  add_field(app, flags, "--slots", "N",
            "The places into which the blocks of a ring arrive in turn: 2, or 3, so that a transfer is ready "
            "before "
            "attention takes the GPU [2]",
            [degree](Job& job, Text text) { job.set_slots(degree("--slots", text)); });
  add_field(app, flags, "--pieces", "N",
            "In how many pieces of heads that which comes at once travels (Ulysses, all_gather, need_only), "
            "each beside "
            "attention on the one before [1]",
            [degree](Job& job, Text text) { job.set_pieces(degree("--pieces", text)); });
  add_field(app, flags, "--transfers", "HOW",
            "What moves data between GPUs: sm (multiprocessors) or copy_engine, which leaves them all to "
            "attention; needs NVLink between all ranks, and NCCL 2.28 for Ulysses and all_gather, 2.29 for "
            "rings [sm]",
            [](Job& job, Text text) { job.set_transfers(text); });
  add_field(
      app, flags, "--merges", "HOW",
      "Where partial results are put together: in_turn with attention, on its stream, or beside that of "
      "the next step, on a stream of their own, for one more part in memory [in_turn]",
      [](Job& job, Text text) { job.set_merges(text); });
  add_field(
      app, flags, "--keys", "WHAT",
      "What travels where keys and values are made of latent rows: heads, expanded at home, latent (the "
      "rows, expanded where they arrive), or fewer_bytes, whichever that is [fewer_bytes]",
      [](Job& job, Text text) { job.set_keys(text); });
  add_field(app, flags, "--dkv-dtype", "DTYPE",
            "The dtype in which partial gradients travel: f32, or input for that of the inputs [f32]",
            [](Job& job, Text text) { job.set_dkv_dtype(text); });
  add_field(app, flags, "--merge-dtype", "DTYPE",
            "The dtype in which partial outputs are merged: f32, or input for that of the inputs [f32]",
            [](Job& job, Text text) { job.set_merge_dtype(text); });
  add_field(
      app, flags, "--target", "NAME",
      "What the plans are made for: host, or a GPU with fused attention: sm80, sm90, sm100 or sm120 [host]",
      [](Job& job, Text text) { job.set_target(text); });
  add_field(app, flags, "--gradients", "NAMES", "Which gradients the backward pass computes [dq,dk,dv]",
            [](Job& job, Text text) { job.set_gradients(text); });
  add_field(app, flags, "--lse", "PLACE",
            "Where the log-sum-exp ends: home (at the rank that owns the row, as out does) or computed "
            "(where it was "
            "computed) [home]",
            [](Job& job, Text text) { job.set_lse(text); });
  add_switch(app, flags, "--send-empty", "Send also the blocks that no later rank needs",
             [](Job& job) { job.set_send_empty(true); });
}

}  // namespace cp::cli
