#include "cli/cpsim/attention_flags.h"

#include <limits>
#include <string>
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

// A flag for a whole number.
template <class Set>
void add_number(FlagSet app, Flags& flags, const char* flag, const char* help, std::int64_t least, Set set) {
  add_field(app, flags, flag, "N", help,
            [flag, least, set](Job& job, Text text) { set(job, parse_whole(flag, text, least)); });
}

void add_shape_flags(FlagSet app, Flags& flags) {
  add_field(app, flags, "--mesh", "MESH", "The cp ranks: cp=8, or co=2,ds=4",
            [](Job& job, Text text) { job.set_mesh(text); });
  add_number(app, flags, "--seq-len", "Queries", 1, [](Job& job, std::int64_t n) { job.set_seq_len(n); });
  add_number(app, flags, "--kv-len", "Keys [as many as queries]", 1,
             [](Job& job, std::int64_t n) { job.set_kv_len(n); });
  add_number(app, flags, "--batch", "[1]", 1, [](Job& job, std::int64_t n) { job.set_batch(n); });
  add_number(app, flags, "--q-heads", "[8]", 1, [](Job& job, std::int64_t n) { job.set_q_heads(n); });
  add_number(app, flags, "--kv-heads", "[as many as query heads]", 1,
             [](Job& job, std::int64_t n) { job.set_kv_heads(n); });
  add_number(app, flags, "--head-dim", "[64]", 1, [](Job& job, std::int64_t n) { job.set_head_dim(n); });
  add_number(app, flags, "--v-head-dim", "Of the values [as --head-dim]", 1,
             [](Job& job, std::int64_t n) { job.set_v_head_dim(n); });
  add_field(app, flags, "--dtype", "DTYPE", "f32, f16 or bf16 [f32]",
            [](Job& job, Text text) { job.set_dtype(sim::parse_proto_dtype("--dtype", text)); });
  add_field(app, flags, "--format", "FORMAT", "bshd, bnsd or sbhd [bshd]",
            [](Job& job, Text text) { job.set_format(text); });
  add_field(app, flags, "--softmax-scale", "X", "[1/sqrt(head dim)]",
            [](Job& job, Text text) { job.set_softmax_scale(parse_real("--softmax-scale", text)); });
}

void add_mask_flags(FlagSet app, Flags& flags, bool& padding) {
  add_switch(app, flags, "--causal", "A query sees no later key", [](Job& job) { job.set_causal(true); });
  add_number(app, flags, "--window", "A query sees keys less than N away", 1,
             [](Job& job, std::int64_t n) { job.set_window(n); });
  add_field(app, flags, "--documents", "ENDS",
            "Packed documents as cu_seqlens: 0/10/50, or of each batch entry: 0/10/50;0/20/50",
            [](Job& job, Text text) { job.set_documents(text); });
  app.add_flag("--padding", padding, "Documents may end before the keys do: what is behind is padding");
  add_field(app, flags, "--query-offset", "N", "Position of the first query among the keys [the ends align]",
            [](Job& job, Text text) { job.set_query_offset(parse_int(text, "--query-offset")); });
}

}  // namespace

void add_problem_flags(FlagSet app, Flags& flags, bool& padding) {
  add_shape_flags(app, flags);
  add_mask_flags(app, flags, padding);
  add_kernel_option_flags(app, flags);
}

void require_covered(const AttentionProblem& problem, const Flags& flags, bool padding) {
  if (padding || !flags.scenario.empty()) return;
  std::vector<std::vector<std::int64_t>> lists = problem.cu_seqlens_of_entry;
  if (!problem.cu_seqlens.empty()) lists.push_back(problem.cu_seqlens);
  for (const std::vector<std::int64_t>& ends : lists) {
    if (ends.back() == problem.kv_len) continue;
    throw InvalidInput(str("--documents ", documents_text(problem), ": ", join(ends, "/"), " ends at ",
                           ends.back(), ", and ", problem.kv_len - ends.back(), " of ", problem.kv_len,
                           " keys belong to no document; end at ", problem.kv_len,
                           ", or add --padding where nobody shall see them"));
  }
}

void add_strategy_flags(FlagSet app, Flags& flags) {
  add_field(app, flags, "--strategy", "NAME",
            "One of: ulysses, all_gather, ring, double_ring, need_only, pass_q, "
            "ulysses_all_gather, ulysses_ring [ring]",
            [](Job& job, Text text) { job.set_strategy(text); });
  add_field(
      app, flags, "--balance", "BALANCE",
      "contiguous, head_tail, striped[:BLOCK], cost[:BLOCK], head_tail_exchange, per_document:head_tail",
      [](Job& job, Text text) { job.set_balance(text); });
  const auto degree = [](const char* flag, Text text) {
    return static_cast<std::int32_t>(parse_whole(flag, text, 1, std::numeric_limits<std::int32_t>::max()));
  };
  add_field(app, flags, "--ulysses-degree", "N", "Ranks that trade rows for heads",
            [degree](Job& job, Text text) { job.set_ulysses_degree(degree("--ulysses-degree", text)); });
  add_field(app, flags, "--inner-ring", "N", "Ranks in each inner ring of a double ring",
            [degree](Job& job, Text text) { job.set_inner_ring(degree("--inner-ring", text)); });
  add_field(app, flags, "--axis-order", "ORDER",
            "Neighbouring ranks form a Ulysses group, or a ring: ulysses_inner "
            "or ring_inner [ulysses_inner]",
            [](Job& job, Text text) { job.set_axis_order(text); });
  add_field(app, flags, "--rotation", "HOW", "Of the ring's blocks: exchange or all_gather [exchange]",
            [](Job& job, Text text) { job.set_rotation(text); });
  add_field(app, flags, "--dkv-dtype", "DTYPE", "Of partial gradients under way: f32 or input [f32]",
            [](Job& job, Text text) { job.set_dkv_dtype(text); });
  add_field(app, flags, "--merge-dtype", "DTYPE", "Of partial outputs: f32 or input [f32]",
            [](Job& job, Text text) { job.set_merge_dtype(text); });
  add_field(
      app, flags, "--target", "NAME",
      "What the plans are made for: host, or GPUs with fused attention, sm80, sm90, sm100 or sm120 [host]",
      [](Job& job, Text text) { job.set_target(text); });
  add_field(app, flags, "--gradients", "NAMES", "Which ones the backward pass computes [dq,dk,dv]",
            [](Job& job, Text text) { job.set_gradients(text); });
  add_field(app, flags, "--lse", "PLACE",
            "Of a rank's own rows, as out, or where it was computed: home or computed [home]",
            [](Job& job, Text text) { job.set_lse(text); });
  add_switch(app, flags, "--send-empty", "Also send blocks that nobody further on needs",
             [](Job& job) { job.set_send_empty(true); });
}

}  // namespace cp::cli
