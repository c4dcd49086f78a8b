// What plans of whole models compute and move is what closed formulas say.
#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/sizes.h"
#include "shared/transformer/step_plan.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

// ---- what is computed ----

struct Work {
  std::int64_t product_flops = 0, forward_pairs = 0,
               backward_pairs = 0;  // pairs: of a query's head and a key
  bool operator==(const Work&) const = default;
};
void showValue(const Work& work, std::ostream& out) {
  out << work.product_flops << " flops, " << work.forward_pairs << " and " << work.backward_pairs << " pairs";
}
std::ostream& operator<<(std::ostream& out, const Work& work) {
  showValue(work, out);
  return out;
}

// Of query heads.
std::int64_t pairs_of(const View& q, const std::vector<MaskSlice>& slices) {
  std::int64_t pairs = 0;
  for (const MaskSlice& slice : slices) {
    for (std::int64_t i = 0; i < slice.q_len; ++i) {
      for (std::int64_t j = 0; j < slice.k_len; ++j) {
        pairs += allows(slice, slice.q_begin + i, slice.k_begin + j) ? 1 : 0;
      }
    }
  }
  return pairs * q.shape[0] * q.shape[2];
}

Work work_of(const Plan& plan) {
  Work work;
  for (const StepRef& ref : steps_of(plan)) {
    visit_operation(ref.step->work, [&](const auto& op) {
      using T = std::remove_cvref_t<decltype(op)>;
      if constexpr (std::is_same_v<T, MatMul>) {
        work.product_flops += ref.count * 2 * op.a.numel() * op.b.shape.back();
      } else if constexpr (std::is_same_v<T, AttentionForward>) {
        work.forward_pairs += ref.count * pairs_of(op.q, op.slices);
      } else if constexpr (std::is_same_v<T, AttentionBackward>) {
        work.backward_pairs += ref.count * pairs_of(op.q, op.slices);
      }
    });
  }
  return work;
}

Work work_of(const std::vector<Plan>& plans) {
  Work all;
  for (const Plan& plan : plans) {
    const Work one = work_of(plan);
    all.product_flops += one.product_flops, all.forward_pairs += one.forward_pairs;
    all.backward_pairs += one.backward_pairs;
  }
  return all;
}

// Of a micro-batch of all replicas, the rows that are multiplied with a weight that all tp ranks hold alike.
// Each of them takes its own rows between tensor-parallel regions, with zeros behind the last one; where rows
// are not split, all take all of them.
std::int64_t own_rows(const StepRequest& request) {
  const ParallelLayout& layout = request.layout;
  const AttentionSharding sharding(
      attention_problem(request.model, request.workload, layout, first_attention(request.model)), layout.cp,
      layout.cp > 1 ? layout.strategy : Strategy{});
  std::int64_t made = 0;
  for (int cp = 0; cp < layout.cp; ++cp) {
    const std::int64_t rows = layout.micro_batch * sharding.home_q(cp).num_rows();
    made +=
        std::int64_t{layout.dp()} * layout.tp * (layout.row_ranks() > 1 ? ceil_div(rows, layout.tp) : rows);
  }
  return made;
}

// Products of latent attention's weights with tokens of a micro-batch, in a layer, but for those of attention
// itself where latent rows travel.
std::int64_t latent_products(const StepRequest& request) {
  const Transformer& model = request.model;
  const ParallelLayout& layout = request.layout;
  const Latent& latent = *model.latent;
  const std::int64_t tokens = layout.dp() * layout.micro_batch * request.workload.seq_len,
                     made = own_rows(request);
  const std::int64_t q_in = latent.q_rank > 0 ? latent.q_rank : model.hidden,
                     not_rotated = model.head_dim - latent.rope_dim;
  const bool at_home = layout.cp == 1 || layout.keys == Strategy::Keys::heads;
  const std::int64_t expanded = at_home ? latent.kv_rank * (not_rotated + latent.v_head_dim) : 0;
  return made * model.hidden * (latent.q_rank + latent.kv_rank + latent.rope_dim) +
         tokens * model.q_heads * (q_in * model.head_dim + expanded + latent.v_head_dim * model.hidden);
}

// Flops of the products that attention of a micro-batch makes itself in a layer of a kind, of all replicas
// and tp ranks: those of latent rows that travel, for each rank that they come to.
std::int64_t expanding_flops(const StepRequest& request, const LayerKind& kind, AttentionPass pass) {
  const ParallelLayout& layout = request.layout;
  AttentionRequest attention;
  attention.problem = attention_problem(request.model, request.workload, layout, kind);
  if (kind.mixer != Mixer::attention || !attention.problem.has_latent()) return 0;
  for (Rank rank = 0; rank < layout.cp; ++rank) attention.ranks.push_back(rank);
  attention.strategy = strategy_of(layout, attention.problem);
  attention.options.lse = LsePlace::computed;
  return std::int64_t{layout.dp()} * layout.tp * work_of(attention_plans(attention, pass)).product_flops;
}

// Of a micro-batch of all replicas, from the model alone: 2 flops for each parameter and token forward, 4
// backward, 2 for each layer that is computed again.
Work work_by_formula(const StepRequest& request) {
  const Transformer& model = request.model;
  const ParallelLayout& layout = request.layout;
  const std::int64_t sequences = layout.dp() * layout.micro_batch, seq_len = request.workload.seq_len,
                     tokens = sequences * seq_len, tp = layout.tp;
  const std::int64_t kv_width = std::max<std::int64_t>(model.kv_heads, tp) * model.head_dim;  // with replicas
  const std::int64_t projections =
      model.hidden * ((model.gated_attention ? 3 : 2) * model.q_width() + 2 * kv_width);
  const std::int64_t matrices = model.gated_mlp ? 3 : 2;
  // Products of a parameter with a token, in a layer of a kind.
  const LocalSizes sizes = local_sizes(model, request.workload, layout);
  const auto products_of = [&](const LayerKind& kind) {
    std::int64_t all = 0;
    if (kind.mixer == Mixer::attention) all = model.latent ? latent_products(request) : tokens * projections;
    if (kind.mixer == Mixer::recurrence) {
      // q, k, v, gates, the output, and a number or two for each head.
      const Recurrence& r = *model.recurrence;
      const std::int64_t keys = r.key_heads * r.key_dim, values = r.value_heads * r.value_dim,
                         numbers = r.rule == RecurrenceRule::delta ? 2 : 1;
      all = tokens * model.hidden * (2 * keys + 3 * values + numbers * r.value_heads);
    }
    // B, C, x and the output.
    if (kind.mixer == Mixer::convolution) all = tokens * 4 * model.hidden * model.hidden;
    if (!kind.has_mlp) return all;
    if (!model.experts || kind.dense) return all + tokens * matrices * model.hidden * model.intermediate;
    // All tp ranks route all tokens.
    const std::int64_t routed = model.experts->count + (model.experts->shared_gate ? 1 : 0);
    return all + tokens * tp * model.hidden * routed +
           layout.world() / layout.pp * sizes.expert_tokens * matrices * model.hidden * sizes.expert_columns +
           tokens * matrices * model.hidden * model.experts->shared;
  };
  // A row's keys, in layers of a kind: from the chunk's begin, or the window's.
  const auto pairs_of = [&](const LayerKind& kind) {
    std::int64_t pairs = 0;
    if (kind.mixer != Mixer::attention) return pairs;
    for (std::int64_t row = 0; row < seq_len; ++row) {
      const std::int64_t in_chunk = row % kind.chunk.value_or(seq_len) + 1;
      pairs += std::min(in_chunk, kind.window.value_or(seq_len));
    }
    return sequences * model.q_heads * pairs;
  };
  Work work;
  // Prediction layers are of the kind of the last one, and none is among every so many.
  for (std::int64_t layer = 0; layer < model.layers + model.prediction_layers; ++layer) {
    const bool predicts = layer >= model.layers;
    const LayerKind& kind =
        model.kinds[static_cast<std::size_t>(model.kind_of(predicts ? model.layers - 1 : layer))];
    const std::int64_t pairs = pairs_of(kind);
    const bool recomputed = layout.recompute.kind == Recompute::Kind::full ||
                            (layout.recompute.kind == Recompute::Kind::every && !predicts &&
                             (layer + 1) % layout.recompute.every == 0);
    if (predicts) work.product_flops += 6 * own_rows(request) * 2 * model.hidden * model.hidden;
    work.product_flops += (recomputed ? 8 : 6) * products_of(kind) +
                          (recomputed ? 2 : 1) * expanding_flops(request, kind, AttentionPass::forward) +
                          expanding_flops(request, kind, AttentionPass::backward);
    work.backward_pairs += pairs;
    work.forward_pairs += recomputed ? 2 * pairs : pairs;
  }
  const std::int64_t padded_vocab = ceil_div(model.vocab, tp) * tp;
  // Chunks of an MLP make gate and up again, whatever else is computed again.
  const bool dense =
      model.parts_of(model.kinds[static_cast<std::size_t>(model.kind_of(model.layers - 1))]).mlp ==
      Mlp::dense;
  const std::int64_t with_mlp = count_of(layers_of_parts(model, layers_of_kinds(model)), Mlp::dense) +
                                (dense ? model.prediction_layers : 0);
  const std::int64_t of_chunks =
      layout.mlp_chunks > 1 ? 2 * with_mlp * tokens * (matrices - 1) * model.hidden * model.intermediate : 0;
  work.product_flops += (1 + model.prediction_layers) * 6 * tokens * model.hidden * padded_vocab + of_chunks;
  return work;
}

RC_GTEST_PROP(StepPlans, ComputeWhatTheModelNeedsAndNothingElse, ()) {
  StepRequest request = any_request();
  request.layout.pp = 1;
  RC_PRE(request.workload.phase == Phase::training &&
         !refuse(request.model, request.workload, request.layout));
  RC_LOG() << to_string(request.layout) << "\n";
  RC_ASSERT(work_of(plans_of_all_ranks(request, StepPart::micro_batch)) == work_by_formula(request));
}

TEST(StepPlans, OfAllStagesComputeTogetherWhatTheModelNeeds) {
  for (const char* layout :
       {"pp=2", "pp=3,tp=2,dp_shard=2", "pp=2,cp=2,recompute=full,strategy=ring,balance=head_tail"}) {
    StepRequest request = small_request(layout);
    Work work = work_of(plans_of_all_ranks(request, StepPart::forward));
    const Work backward = work_of(plans_of_all_ranks(request, StepPart::backward));
    work.product_flops += backward.product_flops, work.forward_pairs += backward.forward_pairs;
    work.backward_pairs += backward.backward_pairs;
    EXPECT_EQ(work, work_by_formula(request)) << layout;
    request.model.prediction_layers = 2;
    const auto of_part = [&](StepPart part) { return work_of(plans_of_all_ranks(request, part)); };
    const Work forward = of_part(StepPart::forward), again = of_part(StepPart::backward);
    EXPECT_EQ((Work{forward.product_flops + again.product_flops, forward.forward_pairs + again.forward_pairs,
                    forward.backward_pairs + again.backward_pairs}),
              work_by_formula(request))
        << layout;
  }
}

TEST(StepPlans, OfServingComputeNewTokensAndTheLastLogits) {
  StepRequest request = small_request("tp=2,cp=2,strategy=ring");
  request.workload.phase = Phase::prefill, request.workload.cached = 8;
  const Transformer& model = request.model;
  const std::int64_t tokens = 16, padded_vocab = 50;
  const std::int64_t layer =
      model.hidden * (2 * model.q_width() + 2 * model.kv_width() + 3 * model.intermediate);
  Work expected;
  // Each cp rank takes the rows that it has for the last ones.
  expected.product_flops = 2 * (model.layers * tokens * layer + 2 * model.hidden * padded_vocab);
  for (std::int64_t row = 8; row < 24; ++row)
    expected.forward_pairs += model.layers * model.q_heads * (row + 1);
  EXPECT_EQ(work_of(plans_of_all_ranks(request, StepPart::prefill)), expected);
  request.workload.phase = Phase::decode, request.workload.cached = 23, request.workload.new_tokens = 1;
  expected.product_flops = 2 * (model.layers * layer + model.hidden * padded_vocab);
  expected.forward_pairs = model.layers * model.q_heads * 24;
  EXPECT_EQ(work_of(plans_of_all_ranks(request, StepPart::decode)), expected);
}

RC_GTEST_PROP(StepPlans, TheBusiestRankHasMostPairsOrTheToken, ()) {
  StepRequest request = any_request();
  request.layout.pp = 1, request.layout.recompute = {};
  RC_PRE(!refuse(request.model, request.workload, request.layout));
  const std::vector<Plan> plans = step_plans(request, parts_of(request)[0], 0);
  std::int64_t most = 0;
  for (const Plan& plan : plans) most = std::max(most, work_of(plan).forward_pairs);
  const Rank busiest = busiest_rank(request, 0);
  RC_LOG() << to_string(request.layout) << " " << name(request.workload.phase) << " of "
           << request.workload.seq_len << ": rank " << busiest << " has "
           << work_of(plans[static_cast<std::size_t>(busiest)]).forward_pairs << " of at most " << most
           << "\n";
  if (request.workload.phase != Phase::decode) {
    RC_ASSERT(work_of(plans[static_cast<std::size_t>(busiest)]).forward_pairs == most);
  } else if (request.layout.ep == 1) {  // experts compute rows of other ranks
    std::int64_t products = 0;
    for (const Plan& plan : plans) products = std::max(products, work_of(plan).product_flops);
    RC_ASSERT(work_of(plans[static_cast<std::size_t>(busiest)]).product_flops == products);
  }
}

// ---- what is moved ----

// Bytes sent by a rank on each group, by operation: "tp all_gather".
std::map<std::string, std::int64_t> bytes_of(const Plan& plan) {
  std::map<std::string, std::int64_t> bytes;
  for (const StepRef& ref : steps_of(plan)) {
    if (!is_collective(*ref.step)) continue;
    const Collective& collective = std::get<Collective>(ref.step->work);
    const Volume moved = volume(collective, plan);
    std::int64_t sum = 0;
    for (const std::int64_t sent : moved.sent) sum += sent;
    const std::string& group = plan.groups[static_cast<std::size_t>(group_of(collective))].name;
    bytes[str(group, " ", operation_name(ref.step->work))] += ref.count * sum;
  }
  return bytes;
}

TEST(StepPlans, MoveWhatTheFormulasSay) {
  using ::testing::IsEmpty;
  using ::testing::Pair;
  using ::testing::UnorderedElementsAre;
  // 24 rows of 32 bf16 on two tp ranks: 12 rows of each go to the other one. A layer gathers its rows twice
  // and scatters them twice forward; backward it gathers gradients and, for the gradients of weights, rows
  // again, and scatters gradients. The embedding scatters and its gradients are gathered; the head gathers
  // and its gradients are scattered.
  const std::int64_t rows = 12 * 32 * 2, layers = 3;
  StepRequest request = small_request("tp=2");
  const std::int64_t statistics = 24 * 3 * 4;
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::micro_batch, 0, 1)),
              UnorderedElementsAre(Pair("tp all_gather", (layers * (2 + 4) + 2) * rows),
                                   Pair("tp reduce_scatter", (layers * (2 + 2) + 2) * rows),
                                   Pair("tp all_reduce", statistics)));
  // The norms' gradients, in f32, are added up once a step where whole gradients are; else layer by layer.
  EXPECT_EQ(bytes_of(step_plan(request, StepPart::update, 0, 1)).at("tp all_reduce"),
            (2 * layers + 1) * 32 * 4);
  EXPECT_EQ(
      bytes_of(step_plan(small_request("tp=2,dp_shard=2"), StepPart::micro_batch, 0, 1)).at("tp all_reduce"),
      (2 * layers + 1) * 32 * 2 + statistics);
  request.layout.recompute = {Recompute::Kind::full, 1};
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::micro_batch, 0, 1)),
              UnorderedElementsAre(Pair("tp all_gather", (layers * (2 + 2 + 4) + 2) * rows),
                                   Pair("tp reduce_scatter", (layers * (2 + 2 + 2) + 2) * rows),
                                   Pair("tp all_reduce", statistics)));
  // Parameters of a layer and of the ends, in f32 at home and bf16 under way; gathered forward and backward,
  // layers twice.
  request = small_request("dp_shard=4");
  const std::int64_t layer = 32 * (4 + 2 + 2 + 4) * 8 + 3 * 32 * 48 + 2 * 32, embedding = 50 * 32,
                     head = 50 * 32 + 32;
  const std::int64_t shards = layers * (layer / 4), ends = embedding / 4 + head / 4;
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::micro_batch, 0, 2)),
              UnorderedElementsAre(Pair("fsdp all_gather", 3 * 2 * (2 * shards + ends)),
                                   Pair("fsdp_reduce reduce_scatter", 3 * 4 * (shards + ends))));
  request.layout.dp_replicate = 2, request.workload.global_batch = 8;
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::update, 0, 5)),
              UnorderedElementsAre(Pair("replicas all_reduce", 4 * (shards + ends)),
                                   Pair("norm_shards all_reduce", 3 * 4)));
  // With stages everything is gathered and reduced once a step.
  request = small_request("dp_shard=4,pp=3");
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::update, 1, 4)),
              UnorderedElementsAre(Pair("fsdp_reduce reduce_scatter", 3 * 4 * (layer / 4)),
                                   Pair("fsdp all_gather", 3 * 2 * (layer / 4)),
                                   Pair("norm_shards all_reduce", 3 * 4), Pair("norm_pp all_reduce", 2 * 4)));
  for (const StepPart part : {StepPart::forward, StepPart::backward})
    EXPECT_THAT(bytes_of(step_plan(request, part, 1, 4)), IsEmpty());
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::send_forward, 1, 4)),
              UnorderedElementsAre(Pair("pp exchange", 24 * 32 * 2)));
  EXPECT_THAT(bytes_of(step_plan(request, StepPart::recv_backward, 0, 2)),
              UnorderedElementsAre(Pair("pp_gradients exchange", 0)));
  // 24 tokens that go to 2 of 4 experts each, on two ranks.
  request = small_request("dp_shard=2,ep=2");
  request.model.experts = Experts{4, 2, 24};
  const std::int64_t block = 24 * 2 / 2;
  const auto bytes = bytes_of(step_plan(request, StepPart::micro_batch, 0, 0));
  // Rows there and back, forward and backward, and the router's weights there and their gradients back.
  EXPECT_EQ(bytes.at("ep all_to_all"), layers * block * (4 * 32 * 2 + 2 * 4));
}

}  // namespace
}  // namespace cp::testing
