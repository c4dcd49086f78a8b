// The ledger of attention plans finds what is wrong with them: correct plans of all strategies have no
// finding, and each planted defect, one at a time, has one that says what it is about.
#include "sim/proof/ledger/attention_ledger.h"

#include <algorithm>
#include <cctype>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "tests/proof/attention_ledger_defects.h"
#include "tests/proof/message_damage.h"

namespace cp::testing {
namespace {

using sim::AttentionLedger;
using sim::keep_ledger;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Forward = AttentionForward;
using Backward = AttentionBackward;

constexpr AttentionPass kPasses[] = {AttentionPass::forward, AttentionPass::backward};

// ---- scenes: correct plans of small requests ----

struct Scene {
  std::string name;
  AttentionRequest request;
  AttentionPass pass;
  std::vector<Plan> plans() const { return attention_plans(request, pass); }
};

// Two batches, two kv heads, and on two Ulysses indices two query heads: each can be taken for the other. 21
// rows on 4 ranks leave blocks of unequal size.
AttentionProblem small_problem(std::string_view mask) {
  AttentionProblem problem;
  problem.batch = 2, problem.q_len = problem.kv_len = 21;
  problem.q_heads = 4, problem.kv_heads = 2;
  problem.head_dim = problem.v_head_dim = 4;
  problem.causal = mask != "window";
  if (mask == "window") problem.window = 6;
  if (mask == "documents") problem.cu_seqlens = {0, 5, 5, 13, 21}, problem.dtype = DType::bf16;
  if (mask == "padding") problem.cu_seqlens = {0, 9, 17}, problem.format = TensorFormat::bnsd;
  return problem;
}

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = [] {
    std::vector<Scene> made;
    for (const std::string_view mask : {"causal", "documents", "window", "padding"}) {
      AttentionRequest request;
      request.problem = small_problem(mask);
      request.ranks = {0, 1, 2, 3};
      const auto add = [&](const std::string& strategy, const std::string& balance) {
        request.strategy = named_strategy({strategy, {}, {}}, request.problem, 4);
        request.strategy.balance = parse_balance(balance);
        for (const AttentionPass pass : kPasses) {
          made.push_back({str(strategy, " ", balance, ", ", mask,
                              pass == AttentionPass::forward ? ", forward" : ", backward"),
                          request, pass});
        }
      };
      for (const char* strategy : {"ring", "pass_q", "ulysses", "ulysses_ring", "double_ring"}) {
        add(strategy, "head_tail");
      }
      add("all_gather", "striped");  // so that everybody has something for everybody
      add("need_only", "contiguous");
      add("ring", "head_tail_exchange");
    }
    return made;
  }();
  return all;
}

TEST(AttentionLedger, FindsNothingInCorrectPlans) {
  for (const Scene& scene : scenes()) {
    const Found found = look(scene.request, scene.pass, scene.plans());
    EXPECT_TRUE(found.nothing()) << scene.name << "\n" << found.text();
  }
}

// ---- planted defects ----

class PlantedDefect : public ::testing::TestWithParam<Defect> {};

constexpr std::size_t kPlaces = 6;  // of a scene, at most

TEST_P(PlantedDefect, IsFoundWhereverItIs) {
  const Defect& defect = GetParam();
  std::size_t planted = 0;
  for (const Scene& scene : scenes()) {
    const std::vector<Plan> clean = scene.plans();
    std::vector<Plan> plans = clean;
    const std::size_t places = defect.damages(plans).size();
    for (std::size_t n = 0; n < places; n += std::max<std::size_t>(1, places / kPlaces)) {
      plans = clean;
      const Damage damage = std::move(defect.damages(plans)[n]);
      damage.apply();
      ++planted;
      const Found found = look(scene.request, scene.pass, plans);
      const std::string text = (defect.book == Book::cells ? found.cells : found.bytes).summary();
      for (const std::string& word : damage.words) {
        EXPECT_THAT(text, HasSubstr(word)) << scene.name << ": " << damage.place << "\n" << found.text();
      }
    }
  }
  EXPECT_GT(planted, 0U);
  RecordProperty("planted", static_cast<int>(planted));
}

std::string test_name(const ::testing::TestParamInfo<Defect>& info) {
  std::string name;
  bool upper = true;
  for (const char c : info.param.name) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter) name += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = !letter;
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, PlantedDefect, ::testing::ValuesIn(all_defects()), test_name);

// ---- what sums are kept in ----

// Of three parts on each of three ranks, so that two of the states of each sum are unfinished; the problem is
// in bf16.
TEST(AttentionLedgerOfSums, UnfinishedOnesAreInTheTypeThatTheStrategySays) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 12;
  request.problem.head_dim = request.problem.v_head_dim = 2;
  request.problem.dtype = DType::bf16;
  request.ranks = {0, 1, 2};
  for (const bool allowed : {false, true}) {
    request.strategy.input_dtype_gradients = allowed;
    std::vector<Plan> plans = attention_plans(request, AttentionPass::backward);
    int sums = 0;
    for_each<Backward>(plans, [&](Plan& plan, StepId, Step&, Backward& op) {
      Buffer& buffer = plan.buffers[static_cast<std::size_t>(op.dq.buffer)];
      if (!op.accumulate_dq || buffer.dtype == DType::bf16) return;
      buffer.dtype = DType::bf16;
      ++sums;
    });
    EXPECT_EQ(sums, 3);
    const AttentionLedger ledger = keep_ledger(request, AttentionPass::backward, plans);
    if (allowed) {
      EXPECT_TRUE(ledger.cells.empty()) << ledger.cells.summary();
    } else {
      EXPECT_EQ(ledger.cells.count(), 6) << ledger.cells.summary();
      EXPECT_THAT(ledger.cells.texts(),
                  ::testing::Each(
                      ContainsRegex("keeps dq of .* unfinished in bf16, where the strategy adds up in f32")));
    }
  }
}

// ---- the defects of a plan whose rows one can count by hand ----

// 8 rows on 2 ranks by halves, causal: rank 0 has queries and keys 0-3, rank 1 those from 4 on. Its ring
// brings K and V of rank 0 to rank 1, and dK and dV back.
Scene halves(AttentionPass pass, std::vector<std::int64_t> cu_seqlens = {}) {
  Scene scene{"halves", {}, pass};
  AttentionProblem& problem = scene.request.problem;
  problem.q_len = problem.kv_len = 8;
  problem.head_dim = problem.v_head_dim = 2;
  problem.causal = true;
  problem.cu_seqlens = std::move(cu_seqlens);
  scene.request.ranks = {0, 1};
  return scene;
}
template <class Op>
Op& nth(std::vector<Plan>& plans, Rank rank, int n) {
  Op* found = nullptr;
  for_each<Op>(plans, [&](Plan& plan, StepId, Step&, Op& op) {
    if (plan.self == rank && n-- == 0) found = &op;
  });
  CP_INVARIANT(found != nullptr, "no such step");
  return *found;
}
std::vector<std::string> cell_findings(const Scene& scene, const std::vector<Plan>& plans) {
  check(plans);
  return keep_ledger(scene.request, scene.pass, plans).cells.texts();
}

TEST(AttentionLedger, NamesTheMissingPairsAndWhoHoldsThem) {
  const Scene scene = halves(AttentionPass::forward);
  std::vector<Plan> plans = scene.plans();
  Forward& foreign = nth<Forward>(plans, 1, 1);  // all of rank 0's keys for all of rank 1's queries
  ASSERT_THAT(foreign.slices, ElementsAre(MaskSlice{0, 4, 0, 4, MaskSlice::Kind::full, 0, 0}));
  foreign.slices[0].q_begin = 1, foreign.slices[0].q_len = 3;
  EXPECT_THAT(
      cell_findings(scene, plans),
      ElementsAre("nobody computed query 4 with keys [0, 4) in batch 0, head 0, which the mask allows; "
                  "rank 0 holds the key; rank 1 computes the query",
                  "rank 1: out ends with out of batch 0, head 0, row 4 made of 1 cells, not of its 5",
                  "rank 1: lse ends with lse of batch 0, head 0, row 4 made of 1 cells, not of its 5"));
}

TEST(AttentionLedger, NamesBothStepsOfAPairThatCameTwice) {
  const Scene scene = halves(AttentionPass::forward);
  std::vector<Plan> plans = scene.plans();
  nth<Forward>(plans, 0, 0).slices.push_back({2, 1, 1, 1, MaskSlice::Kind::full, 0, 0});
  EXPECT_THAT(
      cell_findings(scene, plans),
      ElementsAre(
          ContainsRegex("rank 0, step [0-9]+ attention_forward \"attention of step 0\" computed query 2 "
                        "with key 1 in batch 0, head 0 again, after rank 0, step [0-9]+ attention_forward"),
          "rank 0: out ends with out of batch 0, head 0, row 2 made of 4 cells, not of its 3",
          "rank 0: lse ends with lse of batch 0, head 0, row 2 made of 4 cells, not of its 3"));
}

TEST(AttentionLedger, NamesWhatAQueryMayNotSee) {
  const Scene scene = halves(AttentionPass::forward);
  std::vector<Plan> plans = scene.plans();
  nth<Forward>(plans, 0, 0).slices[0].diagonal = 1;
  EXPECT_THAT(
      cell_findings(scene, plans).front(),
      ContainsRegex("rank 0, step [0-9]+ attention_forward \"attention of step 0\" computed query 0 with "
                    "key 1 in batch 0, head 0, which sees key 0"));
}

// Documents end at row 6: rows 6 and 7, which rank 1 holds, are padding.
TEST(AttentionLedger, NamesAPaddedKey) {
  const Scene scene = halves(AttentionPass::forward, {0, 6});
  std::vector<Plan> plans = scene.plans();
  Forward& own = nth<Forward>(plans, 1, 0);
  ASSERT_EQ(own.slices.size(), 1U);
  own.slices[0].k_len += 1, own.slices[0].kind = MaskSlice::Kind::full;
  EXPECT_THAT(
      cell_findings(scene, plans),
      Contains(ContainsRegex("rank 1, step [0-9]+ attention_forward \"attention of step 0\" computed query 5 "
                             "with key 6 in batch 0, head 0, which sees keys \\[0, 6\\)")));
}
TEST(AttentionLedger, NamesAPaddedQuery) {
  const Scene scene = halves(AttentionPass::forward, {0, 6});
  std::vector<Plan> plans = scene.plans();
  nth<Forward>(plans, 1, 1).slices[0].q_len += 1;
  EXPECT_THAT(cell_findings(scene, plans).front(),
              ContainsRegex("computed query 6 with keys \\[0, 4\\) in batch 0, head 0, which sees no key"));
}

// need_only moves rows 0-5 at most; row 7 of rank 1 is padding, and nobody needs it.
TEST(AttentionLedger, CountsAMessageOfPadding) {
  Scene scene = halves(AttentionPass::forward, {0, 6});
  scene.request.strategy.core = Core::need_only;
  std::vector<Plan> plans = scene.plans();
  const std::vector<Damage> more = send_input(plans, "k", 2);
  more[1].apply();  // from rank 1 to rank 0: two values of f32
  check(plans);
  const AttentionLedger ledger = keep_ledger(scene.request, scene.pass, plans);
  EXPECT_EQ(ledger.bytes.summary(), "rank 0 received 8 bytes of k where the index sets say 0");
  EXPECT_EQ(ledger.received[0].redundant_kv, 8);
  EXPECT_TRUE(ledger.cells.empty()) << ledger.cells.summary();
}

// A cell that is lost where another one comes twice: the numbers of all rows are right, and their cells are
// not.
TEST(AttentionLedger, FindsALostPairThatAnotherOneMakesUpFor) {
  const Scene scene = halves(AttentionPass::backward);
  std::vector<Plan> plans = scene.plans();
  std::vector<MaskSlice>& slices = nth<Backward>(plans, 1, 1).slices;
  ASSERT_THAT(slices, ElementsAre(MaskSlice{0, 4, 0, 4, MaskSlice::Kind::full, 0, 0}));
  // Queries 0 and 1 with keys 0 and 1: twice on the diagonal, never beside it.
  slices = {{0, 4, 2, 2, MaskSlice::Kind::full, 0, 0}, {2, 2, 0, 2, MaskSlice::Kind::full, 0, 0}};
  for (const std::int64_t i : {0, 0, 1, 1}) slices.push_back({i, 1, i, 1, MaskSlice::Kind::full, 0, 0});
  const std::string text = join(cell_findings(scene, plans), "\n");
  EXPECT_THAT(text, HasSubstr("nobody computed query 4 with key 1 in batch 0, head 0"));
  EXPECT_THAT(text, HasSubstr("computed query 4 with key 0 in batch 0, head 0 again, after"));
  EXPECT_THAT(text,
              HasSubstr("dk of batch 0, head 0, row 0 made of 8 cells, not of its 8, but of other ones"));
}

// Rank 1's gradients from the lse, and the delta, of its own keys alone: those of the whole row are wanted.
TEST(AttentionLedger, NamesRowsThatAreNotFinished) {
  const Scene scene = halves(AttentionPass::backward);
  std::vector<Plan> plans = scene.plans();
  Plan& plan = plans[1];
  const Backward own = nth<Backward>(plans, 1, 0);
  const View out = add_temporary(plan, DType::f32, 8, 0, 0), lse = add_temporary(plan, DType::f32, 4, 0, 0);
  const auto last = static_cast<StepId>(plan.segments.size());
  Step step;
  for_each<AttentionDelta>(plans, [&](Plan& p, StepId, Step& s, AttentionDelta& op) {
    if (p.self != 1) return;
    step.stream = s.stream;
    op.out = dense_view(out.buffer, 0, op.out.shape);
  });
  nth<Backward>(plans, 1, 0).lse = dense_view(lse.buffer, 0, own.lse.shape);
  step.work = Kernel{Forward{own.q, own.k, own.v, dense_view(out.buffer, 0, own.q.shape),
                             dense_view(lse.buffer, 0, own.lse.shape), own.softmax_scale, own.slices}};
  insert_step(plan, 0, std::move(step));
  for (const BufferId buffer : {out.buffer, lse.buffer}) {
    plan.buffers[static_cast<std::size_t>(buffer)].first_use = 0;
    plan.buffers[static_cast<std::size_t>(buffer)].last_use = last;
  }
  const std::string text = join(cell_findings(scene, plans), "\n");
  EXPECT_THAT(
      text,
      HasSubstr("attention_delta \"delta\": out is out of batch 0, head 0, row 4 made of 1 of its 5 keys"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\"attention backward of step 0\": lse is lse of batch 0, head 0, row 4 made of 1 of its 5 keys"));
  EXPECT_THAT(text, HasSubstr("\"attention backward of step 0\": delta is delta of batch 0, head 0, row 4 "
                              "made of 1 of its 5 keys"));
}

// Each batch entry's pairs are held against its own documents.
TEST(AttentionLedger, TellsBatchEntriesApart) {
  for (const AttentionPass pass : kPasses) {
    Scene scene = halves(pass);
    scene.request.problem.batch = 2;
    scene.request.problem.cu_seqlens_of_entry = {{0, 8}, {0, 3, 8}};
    const std::vector<Plan> plans = scene.plans();
    EXPECT_THAT(cell_findings(scene, plans), ElementsAre());
    std::swap(scene.request.problem.cu_seqlens_of_entry[0], scene.request.problem.cu_seqlens_of_entry[1]);
    const std::string text = join(cell_findings(scene, plans), "\n");
    EXPECT_THAT(text, HasSubstr("computed query 3 with keys [0, 3) in batch 0, head 0, which sees key 3"));
    EXPECT_THAT(text, HasSubstr("nobody computed query 3 with keys [0, 3) in batch 1, head 0"));
  }
}

TEST(AttentionLedger, MissesAnOutputThatWasAskedFor) {
  Scene scene = halves(AttentionPass::backward);
  scene.request.options.gradients.dq = false;
  const std::vector<Plan> plans = scene.plans();
  EXPECT_THAT(cell_findings(scene, plans), ElementsAre());
  scene.request.options.gradients.dq = true;
  EXPECT_THAT(cell_findings(scene, plans), ElementsAre("rank 0 has no output dq", "rank 1 has no output dq"));
  // One that was not asked for is no buffer of the plan.
  scene.request.options.gradients.dv = false;
  EXPECT_THROW(cell_findings(scene, plans), InvalidInput);
}

}  // namespace
}  // namespace cp::testing
