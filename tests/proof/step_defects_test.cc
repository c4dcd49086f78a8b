// Defects of layouts that users have met, planted into right plans and what ranks are given: prove_step()
// finds each of them, and names it.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/proof/step/key_traffic.h"
#include "sim/proof/step/prove_step.h"
#include "tests/proof/small_steps.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using testing::dense_model;
using ::testing::HasSubstr;
using testing::request_of;
using ::testing::StartsWith;

// ---- planting ----

// Calls f(step, alone) for each step in the order of the plan; alone: it is outside of Repeats.
template <class F>
void for_each_step(Plan& plan, const F& f) {
  for (Segment& segment : plan.segments) {
    if (auto* const step = std::get_if<Step>(&segment)) {
      f(*step, true);
    } else {
      for (Step& of_repeat : std::get<Repeat>(segment).steps) f(of_repeat, false);
    }
  }
}

// What prove_step() finds if change(step, plan) is called for each step with this label, of all plans. There
// must be one, or nothing would be planted.
template <class Change>
StepProof proof_with(const StepRequest& request, const std::string& label, const Change& change) {
  int changed = 0;
  const StepPlans plans = [&](StepPart part, int stage, std::int64_t) {
    std::vector<Plan> all = step_plans(request, part, stage);
    for (Plan& plan : all) {
      for_each_step(plan, [&](Step& step, bool) {
        if (step.label == label) changed += change(step, plan) ? 1 : 0;
      });
    }
    return all;
  };
  StepProof proof = prove_step(request, plans, {});
  EXPECT_GT(changed, 0) << label;
  return proof;
}

// In place of what adds up over ranks: what the rank has.
bool leave_out(Step& step, const Plan& plan) {
  const auto& collective = std::get<Collective>(step.work);
  if (const auto* const reduce = std::get_if<AllReduce>(&collective)) {
    step.work = Kernel{Scale{reduce->out, 1}};
    return true;
  }
  const ReduceScatter scatter = std::get<ReduceScatter>(collective);
  const std::vector<Rank>& ranks = plan.groups[idx(scatter.group)].ranks;
  const std::int64_t index = std::find(ranks.begin(), ranks.end(), plan.self) - ranks.begin();
  View own = scatter.out;
  own.buffer = scatter.in.buffer, own.advance = scatter.in.advance;
  own.offset = scatter.in.offset + index * own.numel();
  step.work = own == scatter.out ? Kernel{Scale{own, 1}} : Kernel{Copy{own, scatter.out}};
  return true;
}

// What prove_step() finds if an input of the ranks is changed.
template <class T>
StepProof proof_with_input(const StepRequest& request, const std::string& name,
                           const std::function<void(Rank, std::span<T>)>& change) {
  StepProofOptions options;
  options.on_input = [&](Rank rank, const Buffer& buffer, std::span<std::byte> bytes) {
    if (buffer.name != name) return;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    change(rank, values);
    std::memcpy(bytes.data(), values.data(), bytes.size());
  };
  return prove_step(request, options);
}

// ---- dropout ----

// Each of these is another mask than that of one device.
TEST(StepDefects, OtherWeightsThanThoseOfOneDeviceDropped) {
  const auto finding = [](const char* layout, const std::function<void(std::span<std::int64_t>)>& change) {
    StepRequest request = request_of(dense_model(), layout);
    request.workload.attention_dropout = 0.3;
    return proof_with_input<std::int64_t>(
               request, std::string(kSeedsBuffer),
               [&](Rank rank, std::span<std::int64_t> seeds) { rank == 1 ? change(seeds) : void(); })
        .finding();
  };
  constexpr std::size_t kSeed = 0, kLayer = 1, kSequence = 2;
  for (const char* layout : {"dp_shard=2", "tp=2", "cp=2,strategy=ring"}) {
    EXPECT_EQ(finding(layout, [](auto) {}), "") << layout;
    for (const std::size_t number : {kSeed, kLayer, kSequence}) {
      EXPECT_NE(finding(layout, [&](std::span<std::int64_t> seeds) { seeds[number] += 1; }), "")
          << layout << ", number " << number;
    }
  }
  // Heads of a tensor-parallel rank counted from 0.
  StepRequest request = request_of(dense_model(), "tp=2");
  request.workload.attention_dropout = 0.3;
  const auto own_heads = [](Step& step, const Plan& plan) {
    auto& op = std::get<AttentionForward>(std::get<Kernel>(step.work));
    return plan.self == 1 && std::exchange(op.dropout.first_head, 0) > 0;
  };
  EXPECT_NE(proof_with(request, "attention", own_heads).finding(), "");
}

// ---- the loss ----

// A mean of the means of cp ranks, which data parallelism averages and cp adds up: gradients are as many
// times as large as there are cp ranks. Clipping hides that, but for the norm.
TEST(StepDefects, ALossAveragedOverDataParallelRanksAlone) {
  const StepRequest request = request_of(dense_model(), "cp=2,dp_shard=2,strategy=ring");
  const StepProof proof = proof_with_input<float>(request, "working/loss_weight",
                                                  [](Rank, std::span<float> weight) { weight[0] *= 2; });
  EXPECT_NEAR(proof.gradient_scale, 2, 1e-4);
  EXPECT_THAT(proof.finding(), AllOf(StartsWith("all gradients are "),
                                     HasSubstr("times those of one device before they are clipped")));
}

// The same where ranks have different numbers of labels: no factor is common.
TEST(StepDefects, ALossDividedByTheLabelsOfTheRank) {
  const StepRequest request = request_of(dense_model(), "cp=2,strategy=ring");
  const StepProof proof = proof_with_input<float>(
      request, "working/loss_weight",
      [](Rank rank, std::span<float> weight) { weight[0] *= rank == 0 ? 2.5F : 1.6F; });
  EXPECT_THAT(proof.finding(), StartsWith("first moment of model.embed_tokens.weight: "));
}

// Labels that are the shard's tokens, shifted by one: the last row of each shard has no next token.
TEST(StepDefects, LabelsShiftedAfterTheSplitWithoutTheLastOne) {
  const StepRequest request = request_of(dense_model(), "cp=2,strategy=ring");
  const StepProof proof = proof_with_input<std::int32_t>(
      request, "working/targets", [](Rank, std::span<std::int32_t> labels) { labels.back() = -100; });
  EXPECT_THAT(
      proof.finding(),
      HasSubstr("; 1 row loses another one, before a row of another rank: row 14 of sequence 1 on rank 0 "));
}

// Or the shard's first token, as a roll within the shard gives it.
TEST(StepDefects, LabelsShiftedAfterTheSplitInACircle) {
  const StepRequest request = request_of(dense_model(), "cp=2,strategy=ulysses");
  std::mutex mutex;
  std::map<Rank, std::int32_t> first_token;
  StepProofOptions options;
  options.on_input = [&](Rank rank, const Buffer& buffer, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex);
    if (buffer.name == "working/tokens") std::memcpy(&first_token[rank], bytes.data(), sizeof(std::int32_t));
    if (buffer.name == "working/targets")
      std::memcpy(bytes.data() + bytes.size() - sizeof(std::int32_t), &first_token[rank],
                  sizeof(std::int32_t));
  };
  const StepProof proof = prove_step(request, options);
  EXPECT_THAT(proof.finding(), HasSubstr(": row 14 of sequence "));
}

// ---- routers ----

TEST(StepDefects, ARankThatForgetsCorrectionsOfScores) {
  const StepRequest request = request_of(testing::model_that_corrects_scores(), "ep=2,dp_shard=2");
  EXPECT_EQ(prove_step(request).finding(), "");
  const StepProof proof = proof_with_input<float>(request, std::string(kScoreCorrectionBuffer),
                                                  [](Rank rank, std::span<float> correction) {
                                                    if (rank == 1)
                                                      std::fill(correction.begin(), correction.end(), 0.0F);
                                                  });
  EXPECT_THAT(proof.finding(), AllOf(StartsWith("the loss is "), HasSubstr("on rank 1 loses ")));
}

// A weight decay of 0.1 and a learning rate of 1e-3 move a parameter by 1e-4 of itself.
TEST(StepDefects, ACorrectionThatDecays) {
  const StepRequest request = request_of(testing::model_that_corrects_scores(), "dp_shard=2");
  const StepProof proof = proof_with_input<float>(request, std::string(kScoreCorrectionBuffer),
                                                  [](Rank rank, std::span<float> correction) {
                                                    if (rank == 0) correction[0] *= 1 - 1e-4F;
                                                  });
  EXPECT_THAT(proof.finding(),
              StartsWith("parameter of model.layers.0.mlp.gate.e_score_correction_bias: rank 0 has "));
}

// Each replica moves by the loads of its own tokens.
TEST(StepDefects, LoadsOfExpertsThatAreNotAddedUp) {
  Transformer model = testing::model_that_corrects_scores();
  model.experts->moves_corrections = true;
  const StepProof proof = proof_with(request_of(model, "dp_shard=2"), "add up loads", leave_out);
  EXPECT_THAT(proof.finding(),
              AllOf(StartsWith("parameter of model.layers."), HasSubstr("e_score_correction_bias: rank ")));
}

// ---- positions and attention ----

TEST(StepDefects, RotationByLocalIndex) {
  const StepRequest request = request_of(dense_model(), "cp=2,strategy=ring");
  const StepProof proof = proof_with(request, "rotary", [](Step& step, const Plan& plan) {
    auto& rotary = std::get<RotaryRule>(std::get<RowKernel>(std::get<Kernel>(step.work)).rule);
    rotary.positions = {cp::Run{0, size(rotary.positions), 0, 1}};
    return plan.self != 0;
  });
  // All rows of the second shard, whose first one is row 15, see the first shard elsewhere.
  EXPECT_THAT(proof.finding(), HasSubstr(": row 15 of sequence 1 on rank 1 "));
}

// The slices, of keys [begin, end) alone.
std::vector<MaskSlice> of_keys(const std::vector<MaskSlice>& slices, std::int64_t begin, std::int64_t end) {
  std::vector<MaskSlice> kept;
  for (MaskSlice slice : slices) {
    const std::int64_t first = std::max(begin, slice.k_begin),
                       last = std::min(end, slice.k_begin + slice.k_len);
    if (first >= last) continue;
    slice.diagonal -= first - slice.k_begin;
    slice.k_begin = first, slice.k_len = last - first;
    kept.push_back(slice);
  }
  return kept;
}

// Rank 1 sees, in one of the layers, the keys of its own rows alone.
TEST(StepDefects, ContextParallelismOffInOneLayer) {
  // The second layer's window is longer than a sequence: it is of another kind, and does what the others do.
  Transformer model = dense_model();
  const LayerKind full, window{64, {}, false, Mixer::attention, true};
  set_layers(model, {full, window, full, full});
  const StepRequest request = request_of(model, "cp=2,strategy=all_gather");
  EXPECT_EQ(prove_step(request).finding(), "");
  int off = 0;
  const StepPlans plans = [&](StepPart part, int stage, std::int64_t) {
    std::vector<Plan> all = step_plans(request, part, stage);
    int forward = 0, backward = 0;  // of rank 1
    for_each_step(all.at(1), [&](Step& step, bool) {
      auto* const kernel = std::get_if<Kernel>(&step.work);
      if (kernel == nullptr) return;
      const auto cut = [&](auto& attention) {
        const std::int64_t keys = attention.k.shape.at(1),
                           first = testing::kOddLength - testing::kOddLength / 2;
        ASSERT_EQ(keys, testing::kOddLength);
        attention.slices = of_keys(attention.slices, first, keys);
        ++off;
      };
      if (auto* const attention = std::get_if<AttentionForward>(kernel)) {
        if (++forward == 2) cut(*attention);
      } else if (auto* const gradient = std::get_if<AttentionBackward>(kernel)) {
        if (++backward == 2) cut(*gradient);
      }
    });
    return all;
  };
  const StepProof proof = prove_step(request, plans, {});
  EXPECT_EQ(off, 2);
  const std::vector<LayerTraffic> traffic =
      key_traffic(request, [&](StepPart part, int stage) { return plans(part, stage, 0); });
  ASSERT_EQ(traffic.size(), 4U);
  for (const LayerTraffic& layer : traffic) EXPECT_EQ(layer.moves.empty(), layer.layer == 1) << layer.layer;
  EXPECT_THAT(proof.finding(), HasSubstr(": row 15 of sequence 1 on rank 1 "));
}

// Documents of which no mask knows: the second one's first row is the first that sees too much.
TEST(StepDefects, DocumentsThatSeeOneAnother) {
  const StepRequest packed = [] {
    StepRequest request = request_of(dense_model(), "cp=2,strategy=ring");
    request.workload.cu_seqlens = {0, 11, testing::kOddLength};
    return request;
  }();
  const StepRequest whole = request_of(dense_model(), "cp=2,strategy=ring");
  EXPECT_EQ(prove_step(packed).finding(), "");
  const StepPlans plans = [&](StepPart part, int stage, std::int64_t) {
    return step_plans(whole, part, stage);
  };
  EXPECT_THAT(prove_step(packed, plans, {}).finding(), HasSubstr(": row 11 of sequence 1 on rank 0 "));
}

// Plans of other sequences' documents: of another micro-batch, and of another replica.
TEST(StepDefects, DocumentsOfOtherSequences) {
  StepRequest request = request_of(dense_model(), "cp=2,strategy=ring,dp_replicate=2");
  request.workload.cu_seqlens_of_sequence = {{0, 29}, {0, 11, 29}, {0, 5, 29}, {0, 20, 29}};
  EXPECT_EQ(prove_step(request).finding(), "");
  const StepPlans of_first = [&](StepPart part, int stage, std::int64_t) {
    return step_plans(request, part, stage);
  };
  EXPECT_THAT(prove_step(request, of_first, {}).finding(), HasSubstr(": row 11 of sequence 1 on rank 0 "));
  StepRequest swapped = request;
  std::swap(swapped.workload.cu_seqlens_of_sequence[0], swapped.workload.cu_seqlens_of_sequence[2]);
  const StepPlans of_other_replica = [&](StepPart part, int stage, std::int64_t micro_batch) {
    return step_plans(swapped, part, stage, nullptr, micro_batch);
  };
  EXPECT_THAT(prove_step(request, of_other_replica, {}).finding(),
              HasSubstr(": row 5 of sequence 2 on rank 2 "));
}

// ---- experts ----

// Experts that keep what they have no room for, and that drop what they have room for.
TEST(StepDefects, TokensThatAreDroppedByAnotherCapacity) {
  const auto with = [](double imbalance) {
    StepRequest request = request_of(testing::model_of_experts(), "ep=2,dp_shard=2");
    request.workload.expert_imbalance = imbalance;
    return request;
  };
  for (const auto& [room, planned] : {std::pair{1.0, 1.25}, {1.25, 1.0}}) {
    const StepRequest wrong = with(planned);
    const StepPlans plans = [&](StepPart part, int stage, std::int64_t) {
      return step_plans(wrong, part, stage);
    };
    EXPECT_THAT(prove_step(with(room), plans, {}).finding(), StartsWith("the loss is ")) << planned;
  }
}

// ---- gradients ----

TEST(StepDefects, GradientsOfReplicatedHeadsThatAreNotAddedUp) {
  const StepProof proof = proof_with(request_of(dense_model(), "tp=4"), "add up d k, v weights", leave_out);
  EXPECT_THAT(proof.finding(), StartsWith("first moment of model.layers.0.self_attn.k_proj.weight: "));
}

// A padding in front of a bucket in place of one behind it: the gradients of a shard land one element
// further.
TEST(StepDefects, ABucketWhosePaddingShiftsElements) {
  const StepRequest request = request_of(dense_model(), "dp_shard=3");
  const StepProof proof = proof_with(request, "add gradients", [](Step& step, const Plan& plan) {
    auto& sum = std::get<Accumulate>(std::get<Kernel>(step.work));
    const bool of_layers = plan.buffers[idx(sum.out.buffer)].name == "gradients/layers";
    if (!of_layers || plan.self != 1) return false;
    for (View* const view : {&sum.in, &sum.out}) --view->shape.back();
    ++sum.out.offset;
    return true;
  });
  EXPECT_THAT(proof.finding(),
              AllOf(StartsWith("first moment of model.layers.0."), HasSubstr(": rank 1 has ")));
}

// Experts have a mesh of their own: their gradients are added up over other ranks than those of dense layers.
TEST(StepDefects, GradientsOfExpertsThatAreNotReducedOverTheirMesh) {
  for (const auto& [layout, label, group] :
       {std::array{"dp_replicate=2,dp_shard=2,ep=2", "add up replicas", "replicas_experts"},
        std::array{"dp_shard=4,ep=2", "reduce gradients", "fsdp_experts_reduce"}}) {
    const StepProof proof = proof_with(request_of(testing::model_of_experts(), layout), label,
                                       [&, of = std::string(group)](Step& step, const Plan& plan) {
                                         const auto& collective = std::get<Collective>(step.work);
                                         const GroupId id =
                                             std::visit([](const auto& op) { return op.group; }, collective);
                                         return plan.groups[idx(id)].name == of && leave_out(step, plan);
                                       });
    EXPECT_THAT(proof.finding(), HasSubstr("first moment of model.layers.0.mlp.experts.")) << layout;
  }
}

// ---- the norm ----

TEST(StepDefects, ANormThatIsNotAddedUpOverRanks) {
  for (const auto& [layout, label] : {std::pair{"dp_shard=2", "norm over norm_shards"},
                                      {"tp=2", "norm over norm_tp"},
                                      {"pp=2", "norm over norm_pp"}}) {
    const StepProof proof = proof_with(request_of(dense_model(), layout), label, leave_out);
    EXPECT_THAT(proof.finding(), StartsWith("ranks clip by norms of ")) << layout;
  }
}

TEST(StepDefects, ANormOfTheLastStageAlone) {
  const StepRequest request = request_of(dense_model(), "pp=2,virtual_stages=2");
  const StepProof proof = proof_with(request, "norm of the stages before", [](Step& step, const Plan&) {
    const Accumulate sum = std::get<Accumulate>(std::get<Kernel>(step.work));
    step.work = Kernel{Copy{sum.in, sum.out}};
    return true;
  });
  EXPECT_THAT(proof.finding(), StartsWith("ranks clip by a norm of "));
}

}  // namespace
}  // namespace cp::sim
