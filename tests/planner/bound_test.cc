#include "sim/planner/search/bound.h"

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/sharding.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/rank_groups.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "tests/planner/questions.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

// No layout is faster on the timeline than its bound, and no bound of a layout is below its family's.
void expect_bounded(const PlanQuestion& question, const ParallelLayout& family,
                    const ParallelLayout& layout) {
  const StepBound bound(question);
  Evaluator evaluator(question);
  const double step_ns = evaluator.evaluate(layout).step_us * 1e3;
  RC_LOG() << bound.ns(layout) / step_ns << "\n";
  RC_ASSERT(bound.ns(layout) <= step_ns);
  if (question.workload.phase == Phase::training) {
    AttentionTimer timer(question);
    // All members of a family have the same update. One evaluator would know the second one of the first.
    const double update_ns = Evaluator(question).update_ns(family);
    RC_ASSERT(evaluator.update_ns(layout) == update_ns);
    const double sharper = bound.ns(layout, timer.least(layout), update_ns);
    RC_LOG() << " sharper " << sharper / step_ns << "\n";
    RC_ASSERT(sharper <= step_ns);
    RC_ASSERT(bound.ns(layout, timer.least(layout)) <= sharper);  // the formula's update is no longer
    RC_ASSERT(FamilyBound(bound, update_ns).ns(layout) <= step_ns);
    // Nor does a stage take less than its own bound: beside those that were replayed, it ends no replay
    // early.
    if (layout.pp > 1) {
      const PipelineBound least = bound.pipeline(layout, timer.least(layout), update_ns);
      RC_ASSERT(evaluator.evaluate(layout, step_ns, least).has_value());
    }
  }
  FamilyBound of_family(bound);
  of_family.ns(family);
  RC_ASSERT(of_family.ns(layout) >= bound.ns(layout));
  RC_ASSERT(of_family.ns(layout) <= step_ns);
  RC_ASSERT(bound.family_ns(family) <= bound.ns(layout) * (1 + 1e-12));
}

void pick_and_check(const PlanQuestion& question) {
  const LayoutSpace space(question);
  const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
  const ParallelLayout member = pick("layout", rc::gen::elementOf(space.members(family)));
  RC_PRE(!refuse(question.model, question.workload, member));
  ParallelLayout layout = pick("pieces and slots", rc::gen::elementOf(space.overlaps(member)));
  RC_LOG() << to_string(layout);
  expect_bounded(question, family, layout);
  if (space.may_choose_rows(member)) {
    ParallelLayout rows = member;
    rows.keys = Strategy::Keys::latent;
    expect_bounded(question, family, rows);
  }
  // The search prunes by the bound of the layout alone, and may yet choose these.
  const StepBound bound(question);
  const double bound_ns = FamilyBound(bound).ns(layout);
  const auto expect_no_less = [&] {
    if (refuse(question.model, question.workload, layout)) return;
    RC_ASSERT(bound_ns <= Evaluator(question).evaluate(layout).step_us * 1e3 * (1 + 1e-9));
  };
  layout.window_core = Core::need_only;
  for (const StateScan scan : {StateScan::heads, StateScan::sequential}) {
    layout.scan = scan;
    expect_no_less();
  }
  // Nor do layers with a home of their own take less than a bound, that of their own layout or that of the
  // one that has none.
  const bool halves = layout.strategy.balance.kind == Balance::Kind::head_tail;
  const Balance other{halves ? Balance::Kind::contiguous : Balance::Kind::head_tail};
  const auto& kinds = question.model.kinds;
  const bool has_windows = std::any_of(kinds.begin(), kinds.end(),
                                       [](const LayerKind& kind) { return kind.window || kind.chunk; });
  if (!has_windows) layout.window_core.reset();
  if (has_windows) layout.window_balance = other;
  if (question.model.recurrence) layout.scan_balance = other;
  if (!layout.window_balance && !layout.scan_balance) return;
  expect_no_less();
  if (!refuse(question.model, question.workload, layout)) expect_bounded(question, family, layout);
}

// A recurrence or a short convolution in every second layer; some have it, or an MLP, alone.
void choose_mixer(Transformer& model) {
  model.recurrence = Recurrence{pick("rule", rc::gen::element(RecurrenceRule::delta, RecurrenceRule::decay)),
                                8,
                                pick("value heads", rc::gen::element<std::int64_t>(8, 16)),
                                64,
                                32,
                                4,
                                true};
  model.convolution = ShortConvolution{3, pick("biases", rc::gen::arbitrary<bool>())};
  const Mixer mixer =
      pick("convolves", rc::gen::element(false, false, true)) ? Mixer::convolution : Mixer::recurrence;
  const bool alone = pick("parts alone", rc::gen::arbitrary<bool>());
  std::vector<LayerKind> layers;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    LayerKind kind = model.kinds[idx(model.kind_of(layer))];
    if (layer % 2 == 1) kind = {{}, {}, kind.dense, mixer, true};
    if (alone && layer % 4 == 1) kind.has_mlp = kind.dense = false;
    if (alone && layer % 4 == 3) kind.mixer = Mixer::none;
    layers.push_back(kind);
  }
  set_layers(model, layers);
  forget_unused_mixers(model);
}

RC_GTEST_PROP(StepBound, IsBelowTheTimeline, ()) {
  PlanQuestion question = testing::small_question(16, pick("seq_len", rc::gen::element(4096, 5001, 65536)));
  if (pick("whether question.model.experts", rc::gen::arbitrary<bool>()))
    question.model.experts = Experts{pick("experts", rc::gen::element<std::int64_t>(3, 4, 6, 8)), 2, 512,
                                     pick("shared", rc::gen::element<std::int64_t>(0, 0, 384))};
  if (pick("whether latent", rc::gen::element(false, false, true))) {
    question.model.kv_heads = question.model.q_heads;
    question.model.latent =
        Latent{pick("q_rank", rc::gen::element<std::int64_t>(0, 384)), 256, question.model.head_dim / 4,
               pick("v_head_dim", rc::gen::element<std::int64_t>(16, 64, 192))};
  }
  if (pick("whether question.model.window", rc::gen::arbitrary<bool>())) {
    const std::vector<LayerKind> all[] = {
        {{1000, {}}}, {{{}, {}}, {1000, {}}}, {{300, {}}, {{}, 2000}, {{}, {}}}};
    std::vector<LayerKind> in_turn = all[pick("which kinds", rc::gen::inRange(0, 3))];
    if (question.model.experts) in_turn.front().dense = pick("dense", rc::gen::arbitrary<bool>());
    std::vector<LayerKind> layers;
    for (std::int64_t layer = 0; layer < question.model.layers; ++layer)
      layers.push_back(in_turn[idx(layer) % in_turn.size()]);
    set_layers(question.model, layers);
  }
  question.model.qk_norm = !question.model.latent && pick("norms of q and k", rc::gen::arbitrary<bool>());
  question.model.qk_norm_of_all_heads =
      question.model.qk_norm && pick("norms of all heads", rc::gen::arbitrary<bool>());
  question.model.norms_behind = pick("norms behind", rc::gen::arbitrary<bool>());
  question.model.norms_before =
      !question.model.norms_behind || pick("norms before", rc::gen::element(true, true, false));
  if (!question.model.latent && !question.model.norms_behind)
    question.model.parallel_blocks = pick("parallel blocks", rc::gen::arbitrary<bool>());
  question.model.sinks = pick("sinks", rc::gen::element(false, false, true));
  question.model.gated_mlp = pick("gated MLP", rc::gen::element(true, true, false));
  question.model.gated_attention =
      !question.model.latent && pick("gated attention", rc::gen::arbitrary<bool>());
  if (!question.model.parallel_blocks && pick("whether recurrence", rc::gen::element(false, false, true)))
    choose_mixer(question.model);
  question.model.prediction_layers = pick("prediction layers", rc::gen::element<std::int64_t>(0, 0, 1, 3));
  pick_and_check(question);
}

// Other numbers of layers that are gathered ahead or at once, tensors that no gather brings, and what is
// kept.
RC_GTEST_PROP(StepBound, IsBelowTheTimelineOfShardChoices, ()) {
  PlanQuestion question = testing::small_question(16, pick("seq_len", rc::gen::element(512, 4096, 65536)));
  if (pick("whether question.model.experts", rc::gen::arbitrary<bool>()))
    question.model.experts = Experts{4, 2, 512, 0};
  question.model.norms_behind = pick("norms behind", rc::gen::arbitrary<bool>());
  if (pick("whether recurrence", rc::gen::element(false, false, true))) choose_mixer(question.model);
  Fixed& fixed = question.fixed;
  fixed.prefetch = pick("prefetch", rc::gen::element(1, 0, 2, 5));
  fixed.bucket = pick("bucket", rc::gen::element(1, 2, 3, 16));
  fixed.threshold = pick("threshold", rc::gen::element<std::int64_t>(0, 2000, 300000, 100000000));
  if (fixed.prefetch == kUsualPrefetch) fixed.reshard = pick("reshard", rc::gen::element(0, 0, 1));
  fixed.sync_once = pick("sync", rc::gen::element(false, false, true));
  pick_and_check(question);
}

// With a threshold every rank has the norms, so that a layer begins before what it gathers is there. The
// update, which takes as long as the passes here, is exact, and hides nothing that these claim too much.
TEST(StepBound, NormsWaitForNoGatherWithAThreshold) {
  const PlanQuestion question = testing::small_question(16, 4096);
  for (const char* threshold : {"", ",threshold=2000", ",threshold=300000"}) {
    for (const char* more : {"", ",bucket=3", ",recompute=full", ",sync=step", ",sync=step,recompute=full"}) {
      const ParallelLayout layout = parse_parallel_layout(
          str("tp=2,cp=2,dp_shard=2,dp_replicate=2,strategy=ring,balance=head_tail,micro_batch=2", threshold,
              more));
      Evaluator evaluator(question);
      const double share = StepBound(question).ns(layout, AttentionTimer(question).least(layout),
                                                  evaluator.update_ns(layout)) /
                           (evaluator.evaluate(layout).step_us * 1e3);
      EXPECT_LE(share, 1) << to_string(layout);
      EXPECT_GE(share, 0.8) << to_string(layout);  // chosen, below what was measured (0.853)
    }
  }
}

RC_GTEST_PROP(StepBound, IsBelowTheTimelineOfWholeModels, ()) {
  const auto [model, nodes] =
      pick("model, nodes", rc::gen::element(std::pair{"llama-3.1-8b", 2}, std::pair{"llama-3.1-70b", 8},
                                            std::pair{"mixtral-8x7b", 4}, std::pair{"qwen2.5-7b", 1},
                                            std::pair{"nemotron-h-8b", 2}, std::pair{"deepseek-v2-lite", 2}));
  PlanQuestion question =
      testing::training_question(model, nodes, pick("seq_len", rc::gen::element(8192, 131072)), 64);
  question.workload.phase = pick("question.workload.phase", rc::gen::element(Phase::training, Phase::training,
                                                                             Phase::prefill, Phase::decode));
  Workload& workload = question.workload;
  if (workload.phase == Phase::decode) workload.cached = workload.seq_len - 1, workload.new_tokens = 1;
  pick_and_check(question);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nor does any stage of a pipeline, whatever a search asked the timer before: of other layouts, and so of
// other ranks. The ends of passes are sums of all passes before them, which are rounded.
void expect_stages_bounded(const PlanQuestion& question, const ParallelLayout& layout) {
  AttentionTimer timer(question);
  for (const ParallelLayout& mixers : timer.best_mixers(
           layout, [](const ParallelLayout&) { return true; }, /*plans_run=*/true)) {
    const PipelineBound bound = StepBound(question).pipeline(mixers, timer.least(mixers));
    Evaluator evaluator(question);
    for (const auto& of_rank : evaluator.schedule(mixers).chunks) {
      for (const PipelineChunk& chunk : of_rank) {
        const StageTimes& least = bound.stages[idx(chunk.stage)];
        const double ns = chunk.backward ? least.backward_ns : least.forward_ns;
        RC_LOG() << to_string(mixers) << ", stage " << chunk.stage << (chunk.backward ? " backward " : " ")
                 << ns / (chunk.end_ns - chunk.begin_ns) << "\n";
        RC_ASSERT(ns <= (chunk.end_ns - chunk.begin_ns) * (1 + 1e-6));
      }
    }
    const double step_ns = evaluator.evaluate(mixers).step_us * 1e3;
    RC_ASSERT(evaluator.evaluate(mixers, step_ns, bound).has_value());
  }
}

// Stages differ in the layers that they have, and so in the ranks that stand for them.
RC_GTEST_PROP(StepBound, OfStagesIsBelowTheTimeline, ()) {
  PlanQuestion question = testing::small_question(16, pick("seq_len", rc::gen::element(4096, 5001)));
  Transformer& model = question.model;
  model.layers = 8;
  if (pick("windows", rc::gen::arbitrary<bool>())) {
    std::vector<LayerKind> layers(idx(model.layers));
    for (std::size_t layer = 0; layer < layers.size(); layer += 3) layers[layer].window = 1000;
    set_layers(model, layers);
  }
  choose_mixer(model);
  const int tp = pick("tp", rc::gen::element(1, 2)), cp = pick("cp", rc::gen::element(2, 4)),
            pp = pick("pp", rc::gen::element(2, 4));
  RC_PRE(tp * cp * pp <= 16);
  ParallelLayout layout = parse_parallel_layout(
      str("tp=", tp, ",cp=", cp, ",pp=", pp, ",dp_shard=", std::max(1, 16 / tp / cp / pp),
          ",strategy=", pick("strategy", rc::gen::element("ring", "all_gather", "ulysses", "need_only")),
          ",balance=", pick("balance", rc::gen::element("contiguous", "head_tail"))));
  layout.virtual_stages = pick("virtual stages", rc::gen::element(1, 2));
  const auto balance = [](const char* name) {
    return pick(name, rc::gen::element<std::optional<Balance>>(std::nullopt, Balance{},
                                                               Balance{Balance::Kind::head_tail}));
  };
  layout.window_balance = balance("of windows"), layout.scan_balance = balance("of scans");
  layout.scan = pick("scan", rc::gen::elementOf(state_scans()));
  layout.recompute = pick("recompute", rc::gen::element(Recompute{}, Recompute{Recompute::Kind::selective},
                                                        Recompute{Recompute::Kind::full}));
  RC_PRE(!refuse(question.model, question.workload, layout));
  expect_stages_bounded(question, layout);
}

// The recurrences of a rank in the middle of a ring take longer than those of the first one, which stands for
// the stages without attention.
TEST(StepBound, OfStagesIsThatOfTheirOwnRanks) {
  const PlanQuestion question = testing::training_question("nemotron-h-56b", 256, 8192, 2048);
  const ParallelLayout layout = parse_parallel_layout(
      "tp=2,cp=4,dp_shard=64,pp=4,virtual_stages=4,strategy=ring,rotation=all_gather,balance=head_tail,"
      "scan=sequential,scan_balance=contiguous");
  AttentionTimer asked(question), fresh(question);
  asked.best_scan(layout, [](const ParallelLayout&) { return true; });
  const AttentionTimes times = asked.least(layout), others = fresh.least(layout);
  const StepBound bound(question);
  const PipelineBound least = bound.pipeline(layout, times), least_of_fresh = bound.pipeline(layout, others);
  std::vector<double> shares;
  for (const auto& of_rank : Evaluator(question).schedule(layout).chunks) {
    for (const PipelineChunk& chunk : of_rank) {
      const StageTimes& stage = least.stages[idx(chunk.stage)];
      shares.push_back((chunk.backward ? stage.backward_ns : stage.forward_ns) /
                       (chunk.end_ns - chunk.begin_ns));
    }
  }
  for (std::size_t stage = 0; stage < least.stages.size(); ++stage)
    EXPECT_EQ(least.stages[stage].forward_ns, least_of_fresh.stages[stage].forward_ns) << stage;
  EXPECT_LE(*std::max_element(shares.begin(), shares.end()), 1);
  EXPECT_GE(median(shares), 0.98);  // chosen, below what was measured
}

// What the bound takes for granted of attention's kernels: each has all queries of a block that its rank
// computes on, and where blocks come in turn, one block of keys.
RC_GTEST_PROP(StepBound, KernelsOfAttentionHaveWholeBlocks, ()) {
  const CoreFacts& core = *pick("core", rc::gen::elementOf(all_cores()));
  const int cp = pick("cp", rc::gen::element(2, 4, 8));
  PlanQuestion question = testing::small_question(8, pick("seq_len", rc::gen::element(1000, 4096)));
  LayerKind& kind = question.model.kinds.front();
  if (pick("window", rc::gen::arbitrary<bool>())) kind.window = 300;
  if (pick("chunk", rc::gen::arbitrary<bool>())) kind.chunk = 256;
  if (pick("documents", rc::gen::arbitrary<bool>()))
    question.workload.cu_seqlens = {0, 100, 700, question.workload.seq_len};
  ParallelLayout layout;
  layout.cp = cp, layout.dp_replicate = 8 / cp;
  layout.strategy.core = core.core, layout.strategy.ulysses_degree = pick("ulysses", rc::gen::element(1, 2));
  layout.strategy.balance.kind = pick(
      "balance", rc::gen::elementOf(std::vector<Balance::Kind>(core.balances.begin(), core.balances.end())));
  RC_PRE(!refuse(question.model, question.workload, layout));
  AttentionRequest request;
  request.problem = attention_problem(question.model, question.workload, layout, kind);
  request.strategy = strategy_of(layout, request.problem);
  request.ranks = RankGroups(layout, 0).cp_group();
  const AttentionSharding sharding(request.problem, cp, request.strategy);
  std::int64_t least = question.workload.seq_len, most = 0;
  for (int index = 0; index < cp; ++index) {
    least = std::min(least, sharding.compute_q(index).num_rows());
    most = std::max({most, sharding.compute_q(index).num_rows(), sharding.compute_kv(index).num_rows()});
  }
  const Rank self = pick("rank", rc::gen::elementOf(request.ranks));
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const Plan plan = attention_plan(request, pass, self, shape_target());
    const std::vector<StepRef> steps = steps_of(plan);
    for (const StepRef& ref : steps) {
      const auto* kernel = std::get_if<Kernel>(&ref.step->work);
      if (kernel == nullptr) continue;
      const auto expect = [&](const auto& of) {
        RC_ASSERT(of.q.shape[1] >= least);
        if (core.rotates != Rotates::nothing) RC_ASSERT(of.k.shape[1] <= most);
      };
      if (const auto* forward = std::get_if<AttentionForward>(kernel)) expect(*forward);
      if (const auto* backward = std::get_if<AttentionBackward>(kernel)) expect(*backward);
    }
  }
}

// It keeps what it has found for one layout, and finds the same for another one as if it had kept nothing.
RC_GTEST_PROP(StepBound, SaysTheSameWhateverItWasAskedBefore, ()) {
  PlanQuestion question = testing::small_question(16);
  if (pick("experts", rc::gen::arbitrary<bool>())) question.model.experts = Experts{8, 2, 512, 384};
  if (pick("recurrence", rc::gen::arbitrary<bool>())) choose_mixer(question.model);
  if (pick("chunks", rc::gen::arbitrary<bool>())) question.fixed.mlp_chunks = 2;
  const LayoutSpace space(question);
  const StepBound asked(question);
  for (int i = 0; i < 8; ++i) {
    const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
    const std::vector<ParallelLayout> members = space.members(family);
    if (members.empty()) continue;
    const ParallelLayout layout = pick("layout", rc::gen::elementOf(members));
    if (refuse(question.model, question.workload, layout)) continue;
    RC_LOG() << to_string(layout) << "\n";
    const StepBound fresh(question);
    RC_ASSERT(asked.ns(layout) == fresh.ns(layout));
    RC_ASSERT(asked.family_ns(family) == StepBound(question).family_ns(family));
  }
}

// One of four ranks has an odd number of rows, which two tp ranks pad by kernels of their own, and another
// one stands for all.
TEST(StepBound, IsBelowTheTimelineWhereTheRanksRowsDiffer) {
  PlanQuestion question = testing::small_question(16, 5001);
  LayerKind kind;
  kind.window = 1000;
  set_layers(question.model, std::vector<LayerKind>(idx(question.model.layers), kind));
  for (const char* more : {"", ",pieces=2", ",recompute=selective", ",pieces=2,recompute=selective"}) {
    const ParallelLayout layout = parse_parallel_layout(
        str("tp=2,cp=4,pp=2,strategy=ring,rotation=all_gather,balance=head_tail,sharding=dp_shard", more));
    const double share = StepBound(question).ns(layout, AttentionTimer(question).least(layout)) /
                         (Evaluator(question).evaluate(layout).step_us * 1e3);
    EXPECT_LE(share, 1) << more;
    EXPECT_GE(share, 0.9) << more;
  }
}

// Of layers whose states are most of what a token needs. The share is chosen, below what was measured (0.857
// and 0.859), so that a bound that lost the states shows.
TEST(StepBound, CountsTheStatesThatATokenReadsAndWrites) {
  PlanQuestion question = testing::small_question(8, 4096);
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 16, 64, 128, 128, 4, false};
  std::vector<LayerKind> layers(idx(question.model.layers));
  for (std::size_t layer = 1; layer < layers.size(); ++layer) layers[layer].mixer = Mixer::recurrence;
  set_layers(question.model, layers);
  Workload& workload = question.workload;
  workload.phase = Phase::decode, workload.cached = workload.seq_len - 1, workload.new_tokens = 1;
  workload.global_batch = 512;
  for (const char* text : {"dp_replicate=8,micro_batch=64", "dp_replicate=4,tp=2,micro_batch=128"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    const double bound_ns = StepBound(question).ns(layout),
                 step_ns = Evaluator(question).evaluate(layout).step_us * 1e3;
    EXPECT_LE(bound_ns, step_ns) << text;
    EXPECT_GE(bound_ns, 0.8 * step_ns) << text;
  }
}

// Nothing is below a bound of 0, and then the search would replay every layout: on layouts from all over the
// space the median of the sharper bounds is at least `least` of the step. That of the plain ones, which know
// nothing of windows' own strategies and of when blocks arrive, is at least 0.86. All are chosen, below what
// was measured (gpt-oss-20b, the least: 0.877 plain, 0.935 sharper, since nothing is claimed of transfers in
// layers with windows), so that a term that gets lost shows.
TEST(StepBound, IsNearTheTimelineOfWholeModels) {
  constexpr std::size_t kMembers = 47;  // one of so many, and of families
  const struct {
    const char* model;
    int nodes;
    std::int64_t seq_len;
    std::size_t families;
    double least;
  } rows[] = {{"llama-3.1-8b", 2, 131072, 83, 0.99},  {"llama-3.1-8b", 2, 8192, 83, 0.98},
              {"llama-3.1-70b", 8, 8192, 499, 0.985}, {"mixtral-8x7b", 4, 8192, 499, 0.98},
              {"gpt-oss-20b", 4, 8192, 499, 0.93},    {"nemotron-h-8b", 2, 8192, 83, 0.975}};
  for (const auto& row : rows) {
    const PlanQuestion question = testing::training_question(row.model, row.nodes, row.seq_len, 64);
    const LayoutSpace space(question);
    const StepBound bound(question);
    Evaluator evaluator(question);
    AttentionTimer timer(question);
    std::vector<double> shares, sharper;
    for (std::size_t f = 0; f < space.families().size(); f += row.families) {
      const std::vector<ParallelLayout> members = space.members(space.families()[f]);
      for (std::size_t m = f % kMembers; m < members.size(); m += kMembers) {
        if (refuse(question.model, question.workload, members[m])) continue;
        const double step_ns = evaluator.evaluate(members[m]).step_us * 1e3;
        shares.push_back(bound.ns(members[m]) / step_ns);
        sharper.push_back(bound.ns(members[m], timer.least(members[m]), evaluator.update_ns(members[m])) /
                          step_ns);
      }
    }
    const std::string of = str(row.model, " of ", row.seq_len, " tokens, ", shares.size(), " layouts");
    EXPECT_GE(shares.size(), 20U) << of;
    EXPECT_GE(median(shares), 0.86) << of;
    EXPECT_GE(median(sharper), row.least) << of;
  }
}

// Backward, regions wait for gradients of their rows (both Llamas), and with norms behind (Gemma) layers for
// casts of gradients. In Mamba-2 (Nemotron) values skip the recurrence, and what is normed is made again. The
// shares are chosen, just below what was measured; without the terms they are 0.01 to 0.05 less.
TEST(StepBound, CountsWhatLayersWaitForAndSkip) {
  const struct {
    const char *model, *layout;
    double least;
  } rows[] = {{"llama-3.1-8b", "tp=4,dp_shard=4", 0.965},
              {"llama-3.1-8b", "tp=4,dp_shard=4,recompute=selective", 0.965},
              {"gemma-3-12b", "dp_shard=16,recompute=selective", 0.97},
              {"nemotron-h-8b", "dp_shard=16", 0.995},
              {"nemotron-h-8b", "dp_shard=16,recompute=selective", 0.995}};
  for (const auto& row : rows) {
    const PlanQuestion question = testing::training_question(row.model, 2, 8192, 64);
    const ParallelLayout layout = parse_parallel_layout(row.layout);
    const double step_ns = Evaluator(question).evaluate(layout).step_us * 1e3;
    EXPECT_GE(StepBound(question).ns(layout) / step_ns, row.least) << row.model << ' ' << row.layout;
  }
}

// Experts are most of what layers gather and scatter, and recurrences most of what they compute: each waits
// for the other, and gathers slow scatters down on the port to the network. The shares are chosen, just below
// what was measured; by the sums of all layers they are 0.03 to 0.07 less.
TEST(StepBound, KnowsHowFarTransfersRunAhead) {
  const PlanQuestion question = testing::training_question("nemotron-3-nano-30b-a3b", 256, 8192, 8192);
  const StepBound bound(question);
  AttentionTimer timer(question);
  const struct {
    const char* layout;
    double least;
  } rows[] = {{"dp_shard=64,dp_replicate=32,ep=2,micro_batch=2,recompute=selective", 0.96},
              {"dp_shard=32,dp_replicate=64,micro_batch=2,recompute=selective", 0.94},
              {"cp=2,dp_shard=32,dp_replicate=32,ep=2,micro_batch=4,strategy=ulysses,scan=sequential,"
               "recompute=every:4",
               0.95},
              {"tp=2,dp_shard=64,dp_replicate=16,micro_batch=4,recompute=every:4,loss_chunks=4", 0.975}};
  for (const auto& row : rows) {
    const ParallelLayout layout = parse_parallel_layout(row.layout);
    const double step_ns = Evaluator(question).evaluate(layout).step_us * 1e3,
                 share = bound.ns(layout, timer.least(layout)) / step_ns;
    EXPECT_GE(share, row.least) << row.layout << ' ' << share;
    EXPECT_LE(share, 1) << row.layout;
  }
}

// What a prediction layer adds to the bound is near what it adds to the step: the layer, a head and its loss,
// and the matrix that joins its inputs. Chosen, below what was measured; without one of the parts it is less.
TEST(StepBound, KnowsWhatPredictionLayersTake) {
  PlanQuestion with = testing::small_question(8, 65536);
  with.model.experts = Experts{8, 2, 512, 384};
  const PlanQuestion without = with;
  with.model.prediction_layers = 2;
  for (const char* text : {"dp_shard=8", "tp=4,dp_shard=2", "tp=2,cp=4,strategy=ulysses", "dp_shard=8,ep=4",
                           "pp=2,tp=4", "dp_shard=8,recompute=full", "tp=8,loss_chunks=4"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    const auto added = [&](const auto& of) { return of(with) - of(without); };
    const double step_ns =
        added([&](const PlanQuestion& of) { return Evaluator(of).evaluate(layout).step_us * 1e3; });
    const double bound_ns = added(
        [&](const PlanQuestion& of) { return StepBound(of).ns(layout, AttentionTimer(of).least(layout)); });
    EXPECT_GT(bound_ns, 0.85 * step_ns) << text << " " << bound_ns / step_ns;
    EXPECT_LT(bound_ns, 1.01 * step_ns) << text << " " << bound_ns / step_ns;
  }
}

// What ends early takes longer than the limit, and what does not is the same as without one.
RC_GTEST_PROP(Evaluator, EndsEarlyOnlyBeyondTheLimit, ()) {
  PlanQuestion question = testing::small_question(16);
  question.model.layers = pick("question.model.layers", rc::gen::inRange(4, 12));
  const LayoutSpace space(question);
  const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
  const ParallelLayout layout = pick("layout", rc::gen::elementOf(space.members(family)));
  RC_PRE(layout.pp > 1 && !refuse(question.model, question.workload, layout));
  RC_LOG() << to_string(layout);
  Evaluator evaluator(question);
  const double step_us = evaluator.evaluate(layout).step_us;
  const double share = pick("share", rc::gen::element(0.1, 0.5, 0.9, 0.999, 1.0, 1.1));
  PipelineBound least;
  if (pick("with the bounds of stages", rc::gen::arbitrary<bool>()))
    least = StepBound(question).pipeline(layout, AttentionTimer(question).least(layout));
  const auto limited = evaluator.evaluate(layout, share * step_us * 1e3, least);
  RC_CLASSIFY(!limited, "ends early");
  RC_ASSERT(limited || share < 1);
  if (limited) RC_ASSERT(limited->step_us == step_us);
}

}  // namespace
}  // namespace cp::sim
