// Steps of models with latent attention (MLA): what moves between the ranks of a sequence in training, and
// what serving caches and computes.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/transformer/flops.h"
#include "shared/transformer/step_plan.h"
#include "sim/proof/ledger/expected_traffic.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"
#include "tests/transformer/served_steps.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

StepRequest latent_request(std::string_view layout, std::int64_t q_rank = 20) {
  StepRequest request = small_request(layout);
  request.model.kv_heads = 4, request.model.latent = Latent{q_rank, 12, 2, 6};
  return request;
}

// The kernels and collectives of a rank, a line each, without how often layers repeat them.
std::string lines_of(const Plan& plan) {
  std::string lines;
  for (const StepRef& ref : steps_of(plan)) {
    lines += str(plan.streams[idx(ref.step->stream)], ": ", operation_name(ref.step->work), " \"",
                 ref.step->label, "\"\n");
  }
  return lines;
}

// Bytes that a rank sends along the sequence, in each direction and at all levels of its strategy.
std::int64_t sent_between_cp_ranks(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const StepRef& ref : steps_of(plan)) {
    if (!is_collective(*ref.step)) continue;
    const Collective& collective = std::get<Collective>(ref.step->work);
    const std::string& group = plan.groups[idx(group_of(collective))].name;
    if (group.starts_with("tp") || group.starts_with("fsdp") || group == "norm" || group == "pp") continue;
    for (const std::int64_t sent : volume(collective, plan).sent) bytes += ref.count * sent;
  }
  return bytes;
}

TEST(LatentSteps, WhereRowsTravelAreProvedByTheChecker) {
  for (const char* layout :
       {"tp=2,cp=2,strategy=ring", "pp=2,tp=4,cp=2,dp_shard=2", "cp=4,strategy=ulysses,recompute=full",
        "tp=2,cp=2,dp_shard=4,recompute=selective", "tp=2,sequence_parallel=no,cp=3,strategy=need_only",
        "cp=2,strategy=all_gather,activations=host,recompute=every:2", "cp=4,strategy=ulysses_ring",
        "cp=2,dp_shard=2,zero=2,strategy=ring,balance=head_tail", "cp=5,strategy=ring,tp=2"}) {
    for (const std::int64_t q_rank : {0, 20}) {
      SCOPED_TRACE(str(layout, ", q_rank ", q_rank));
      check_parts(latent_request(str(layout, ",keys=latent"), q_rank));
    }
  }
}

// In place of a product for all rows at home, attention expands what arrives; backward it gives the gradients
// of the rows, which are summed over the tp ranks, and of the weight.
TEST(LatentSteps, HandLatentRowsToAttentionWhereTheyTravel) {
  const std::string all =
      lines_of(step_plan(latent_request("tp=2,cp=2,strategy=ring,keys=latent"), StepPart::micro_batch, 0, 0));
  EXPECT_THAT(all, HasSubstr(R"(compute: rms_norm "kv latent norm"
tp: all_gather "gather q latents"
tp: all_gather "gather kv latents"
compute: matmul "q up"
compute: rotary "rotary"
)"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("\"kv up")));
  EXPECT_THAT(all, HasSubstr("compute: matmul \"expand "));
  EXPECT_THAT(all, HasSubstr(R"(tp: all_gather "gather q latents"
compute: rotary_backward "rotary backward"
compute: matmul "q up, dgrad"
compute: matmul "q up, wgrad"
tp: reduce_scatter "scatter d q latents"
)"));
  EXPECT_THAT(all, HasSubstr(R"("d kv up"
tp: reduce_scatter "scatter d kv latents"
compute: rms_norm_backward "kv latent norm backward"
)"));
  // By default heads do.
  EXPECT_THAT(lines_of(step_plan(latent_request("tp=2,cp=2,strategy=ring"), StepPart::micro_batch, 0, 0)),
              HasSubstr("compute: matmul \"kv up, wgrad\""));
}

// In training each layer moves its rows, or its heads, as often as the ledger of attention says: forward,
// again where it is recomputed, and backward.
RC_GTEST_PROP(LatentSteps, MoveWhatTheLedgerOfAttentionCounts, ()) {
  StepRequest request = latent_request("tp=1", pick("q_rank", rc::gen::element<std::int64_t>(0, 20)));
  ParallelLayout& layout = request.layout;
  layout.tp = pick("tp", rc::gen::element(1, 2)), layout.cp = pick("cp", rc::gen::element(2, 3, 4));
  AttentionProblem any;
  any.q_len = any.kv_len = 64, any.q_heads = 4;
  layout.strategy = pick("strategy", rc::gen::elementOf(standard_strategies(any, layout.cp)));
  layout.keys = pick("keys", rc::gen::element(Strategy::Keys::heads, Strategy::Keys::latent));
  layout.micro_batch = pick("micro_batch", rc::gen::element(1, 2));
  if (pick("recomputed", rc::gen::arbitrary<bool>())) layout.recompute = {Recompute::Kind::full, 1};
  request.workload.global_batch = layout.micro_batch;
  request.workload.seq_len = pick("seq_len", rc::gen::inRange(16, 41));
  RC_PRE(!refuse(request.model, request.workload, layout));
  AttentionRequest attention{
      attention_problem(request.model, request.workload, layout, LayerKind{}),
      {},
      strategy_of(layout, attention_problem(request.model, request.workload, layout, LayerKind{})),
      true,
      {.gradients = {}, .lse = LsePlace::computed}};
  for (Rank rank = 0; rank < layout.cp; ++rank) attention.ranks.push_back(rank);
  const std::int64_t forwards = layout.recompute.kind == Recompute::Kind::full ? 2 : 1;
  std::int64_t expected = 0;
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::int64_t times = pass == AttentionPass::forward ? forwards : 1;
    for (const sim::Received& of_rank : sim::expected_traffic(attention, pass, false))
      expected += times * request.model.layers * layout.tp * of_rank.total();
  }
  std::int64_t sent = 0;
  for (const Plan& plan : plans_of_all_ranks(request, StepPart::micro_batch))
    sent += sent_between_cp_ranks(plan);
  RC_LOG() << to_string(layout) << ": " << sent << " bytes sent, " << expected << " expected\n";
  RC_ASSERT(sent == expected);
}

// Twelve and two elements of a row travel, or eight and six of each of four heads.
TEST(LatentSteps, MoveFewerBytesWithLatentRows) {
  const auto sent = [](const char* keys) {
    const StepRequest request = latent_request(str("cp=2,strategy=all_gather,keys=", keys));
    return sent_between_cp_ranks(step_plan(request, StepPart::micro_batch, 0, 0));
  };
  EXPECT_EQ(sent("heads") * 14, sent("latent") * 4 * (8 + 6));
}

TEST(LatentSteps, RefuseWhatCannotTravelWithTheReason) {
  const auto refusal = [](const StepRequest& request) {
    const auto found = refuse(request.model, request.workload, request.layout);
    return found ? found->text() : std::string("legal");
  };
  EXPECT_THAT(
      refusal(small_request("cp=2,strategy=ring,keys=latent")),
      HasSubstr("keys=latent sends latent rows, and the keys of this model (2 heads of 8) are not made "
                "of any; use keys=heads"));
  EXPECT_THAT(refusal(latent_request("cp=2,strategy=pass_q,keys=latent")), HasSubstr("queries travel"));
  EXPECT_THAT(refusal(latent_request("cp=2,strategy=ulysses,pieces=2,keys=latent")),
              HasSubstr("use keys=heads, or pieces=1"));
  StepRequest all = latent_request("cp=2,strategy=ring,keys=latent");
  all.model.latent->rope_dim = 8;
  EXPECT_THAT(refusal(all), HasSubstr("all 8 elements of a key (rope_dim=8) are the rotated part"));
  all.layout.keys = Strategy::Keys::heads;
  EXPECT_EQ(refusal(all), "legal");
  EXPECT_THAT(refusal(served(latent_request("cp=2,strategy=ring,keys=latent"), Phase::decode, 23)),
              HasSubstr("mean the same where a token is written"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("cp=2,keys=rows"); }),
              HasSubstr("keys=rows in the layout 'cp=2,keys=rows' is unknown; use heads or latent"));
  EXPECT_EQ(to_string(parse_parallel_layout("cp=2,strategy=ring,keys=latent")),
            "cp=2,strategy=ring,balance=contiguous,keys=latent");
  EXPECT_EQ(parse_parallel_layout("cp=2,keys=heads"), parse_parallel_layout("cp=2"));
}

// ---- serving ----

TEST(LatentSteps, OfServingAreProvedByTheChecker) {
  for (const char* layout :
       {"tp=1", "tp=2,micro_batch=3", "cp=2,strategy=ring", "cp=3,tp=2,strategy=pass_q,micro_batch=2",
        "pp=2,tp=4", "cp=2,strategy=all_gather,dp_replicate=2", "cp=4,strategy=ulysses"}) {
    for (const DType cache : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(str(layout, ", cache ", name(cache)));
      StepRequest request = latent_request(layout);
      request.workload.kv_dtype = cache;
      check_parts(served(request, Phase::prefill, 0));
      check_parts(served(request, Phase::prefill, 11));
      check_parts(served(request, Phase::decode, 23));
    }
  }
  check_parts(served(latent_request("cp=2,strategy=ring,keys=latent"), Phase::prefill, 11));
}

// Flops of the products of a plan, and of its attention: pairs of a query's head with a key, times the
// elements that they multiply and add up.
struct Flops {
  std::int64_t products = 0, attention = 0;
};
Flops flops_of(const Plan& plan) {
  Flops flops;
  for (const StepRef& ref : steps_of(plan)) {
    visit_operation(ref.step->work, [&](const auto& op) {
      using T = std::remove_cvref_t<decltype(op)>;
      if constexpr (std::is_same_v<T, MatMul>) {
        flops.products += ref.count * 2 * op.a.numel() * op.b.shape.back();
      } else if constexpr (std::is_same_v<T, AttentionForward>) {
        std::int64_t pairs = 0;
        for (const MaskSlice& slice : op.slices) {
          for (std::int64_t i = 0; i < slice.q_len; ++i) {
            for (std::int64_t j = 0; j < slice.k_len; ++j)
              pairs += allows(slice, slice.q_begin + i, slice.k_begin + j) ? 1 : 0;
          }
        }
        flops.attention +=
            ref.count * 2 * pairs * op.q.shape[0] * op.q.shape[2] * (op.q.shape[3] + op.v.shape[3]);
      }
    });
  }
  return flops;
}

// A token is written: each head's query is multiplied with 6 x 12 elements of kv_up, meets 24 rows of 12 + 2,
// and what 12 elements of these give is multiplied with 12 x 6. Nothing is expanded, however many rows there
// are.
TEST(LatentSteps, DecodingAbsorbsTheWeightOfKeysAndValues) {
  const StepRequest request = served(latent_request("tp=1"), Phase::decode, 23);
  const Plan plan = step_plan(request, StepPart::decode, 0, 0);
  const std::int64_t hidden = 32, layers = 3, heads = 4, q = heads * 8;
  const std::int64_t projections = hidden * 20 + 20 * q + hidden * (12 + 2) + heads * (6 * 12 + 12 * 6) +
                                   heads * 6 * hidden + 3 * hidden * 48;
  const Flops flops = flops_of(plan);
  EXPECT_EQ(flops.products, 2 * (layers * projections + hidden * 50));
  EXPECT_EQ(flops.attention, layers * 2 * 4 * 24 * ((12 + 2) + 12));
  const ModelFlops of_model = model_flops(request.model, request.workload);
  EXPECT_EQ(of_model.products, static_cast<double>(flops.products));
  EXPECT_EQ(of_model.attention, static_cast<double>(flops.attention));
  const std::string all = lines_of(plan);
  EXPECT_THAT(all, HasSubstr(R"(compute: matmul "q up"
compute: matmul "absorb queries"
compute: rotary "rotary"
compute: attention_forward "attention"
compute: matmul "expand output"
compute: matmul "out projection"
)"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("expand home")));
  // One cache, of 14 elements for each of 24 rows and three layers; on two tp ranks just the same.
  for (const char* layout : {"tp=1", "tp=2"}) {
    const Plan of_rank = step_plan(served(latent_request(layout), Phase::decode, 23), StepPart::decode, 0, 0);
    std::map<std::string, std::int64_t> cached;
    for (const Buffer& buffer : of_rank.buffers) {
      if (buffer.name.starts_with("kv_cache")) cached[buffer.name] = buffer.numel;
    }
    EXPECT_EQ(cached, (std::map<std::string, std::int64_t>{{"kv_cache/latent", 3 * 24 * 14}})) << layout;
  }
}

// The matrix b of the product with that label: for each head, the elements of its rows and columns.
View weight_of(const Plan& plan, std::string_view label) {
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    const auto* product = kernel != nullptr ? std::get_if<MatMul>(kernel) : nullptr;
    if (product != nullptr && ref.step->label == label) return product->b;
  }
  ADD_FAILURE() << "no product " << label;
  return {};
}

// kv_up has for each head the rows of its key, without what is rotated, and then those of its value. Queries
// meet all of the former, as they stand, and outputs all of the latter, turned over.
TEST(LatentSteps, DecodingMultipliesWithBothPartsOfTheWeightOnce) {
  StepRequest request = served(latent_request("tp=2"), Phase::decode, 23);
  request.model.layers = 1;
  const Plan plan = step_plan(request, StepPart::decode, 0, 1);
  const View keys = weight_of(plan, "absorb queries"), values = weight_of(plan, "expand output");
  constexpr std::int64_t kHeads = 2, kNope = 6, kValue = 6, kRank = 12;
  EXPECT_EQ(keys.shape, (Shape{kHeads, kNope, kRank}));
  EXPECT_EQ(values.shape, (Shape{kHeads, kRank, kValue}));
  EXPECT_EQ(keys.buffer, values.buffer);
  std::map<std::int64_t, int> read;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t row = 0; row < kNope + kValue; ++row) {
      for (std::int64_t column = 0; column < kRank; ++column) {
        const bool of_key = row < kNope;
        const View& view = of_key ? keys : values;
        const std::int64_t at = view.offset + head * view.strides[0] +
                                (of_key ? row * view.strides[1] + column * view.strides[2]
                                        : column * view.strides[1] + (row - kNope) * view.strides[2]);
        EXPECT_EQ(at - keys.offset, (head * (kNope + kValue) + row) * kRank + column);
        ++read[at];
      }
    }
  }
  EXPECT_EQ(read.size(), static_cast<std::size_t>(kHeads * (kNope + kValue) * kRank));
}

// A prompt's tokens are as many rows of training, forward; cached rows are expanded with the new ones.
TEST(LatentSteps, PrefillsExpandWhatIsCached) {
  const auto flops = [](std::int64_t cached) {
    return flops_of(
        step_plan(served(latent_request("tp=1"), Phase::prefill, cached), StepPart::prefill, 0, 0));
  };
  const std::int64_t hidden = 32, layers = 3, heads = 4;
  const std::int64_t of_token =
      hidden * 20 + heads * 20 * 8 + hidden * (12 + 2) + heads * 6 * hidden + 3 * hidden * 48;
  const std::int64_t expanded = heads * 24 * (6 + 6) * 12;  // all rows, whoever cached them
  for (const std::int64_t cached : {0, 11}) {
    EXPECT_EQ(flops(cached).products, 2 * (layers * ((24 - cached) * of_token + expanded) + hidden * 50))
        << cached;
  }
  EXPECT_EQ(flops(0).attention, layers * 2 * 4 * (24 * 25 / 2) * (8 + 6));
}

}  // namespace
}  // namespace cp::testing
