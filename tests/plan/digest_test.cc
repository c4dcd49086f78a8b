#include <map>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/builder.h"
#include "tests/plan/every_field.h"
#include "tests/plan/random_plan.h"

namespace cp {
namespace {

// With defaults where fields came later: its digest is what it was before they came.
Plan without_later_fields(Plan plan) {
  plan.target.fused_attention.reset();
  const auto came_later = [](std::string_view operation) {
    return operation == "attention_sink_gradient" || operation.starts_with("recurrence_");
  };
  const auto has_rule = [](const Step& step) {
    const Kernel* const kernel = std::get_if<Kernel>(&step.work);
    const RowKernel* const rows = kernel == nullptr ? nullptr : std::get_if<RowKernel>(kernel);
    return rows != nullptr && rows->rule != RowRule{};
  };
  for (const auto& [operation, text] : kRowOperations) plan.target.kernels.erase(std::string(text));
  std::erase_if(plan.target.kernels, came_later);
  std::erase_if(plan.segments, [&](const Segment& segment) {
    const Step* const step = std::get_if<Step>(&segment);
    return step != nullptr && (came_later(operation_name(step->work)) || has_rule(*step));
  });
  for (Segment& segment : plan.segments) {
    Step* const step = std::get_if<Step>(&segment);
    if (step == nullptr) continue;
    visit_operation(step->work, [](auto& op) {
      if constexpr (requires { op.engine; })
        op.workspace = op.seed = View{}, op.softcap = 0, op.dropout = AttentionDropout{};
      if constexpr (requires { op.engine, op.dout; }) op.out = View{};
      if constexpr (requires { op.more_lse; }) op.more.clear(), op.more_lse.clear();
    });
  }
  return plan;
}

// The same in every process and on every machine; changes when the meaning of a field does, and then on
// purpose.
TEST(PlanDigest, GoldenValues) {
  EXPECT_EQ(to_string(digest(Plan{})), "bc854c4b76a4fbda1cd8558a4d3ccc7d");
  Plan plan = test::plan_with_every_field();
  EXPECT_EQ(to_string(digest(plan)), "628c7308fe72c2900eb23c4cdb5ac6b5");
  EXPECT_EQ(to_string(digest(without_later_fields(std::move(plan)))), "3d373007d4867185564bcffdbf3d8980");
  EXPECT_EQ(to_string(counts_digest({{0, 1, 4}, {1, 0, 8}})), "e98cfc4bac3c609e831c573a7071ffab");
}

TEST(PlanDigest, EveryFieldCounts) {
  Plan plan = test::plan_with_every_field();
  std::map<Digest, std::string> seen = {{digest(plan), to_text(plan)}};
  const auto check = [&] {
    const auto [at, fresh] = seen.emplace(digest(plan), to_text(plan));
    ASSERT_TRUE(fresh || at->second == to_text(plan)) << at->second << "\nand\n" << to_text(plan);
  };
  test::Variations(check).of(plan);
  EXPECT_GT(seen.size(), 500U);
}

TEST(PlanDigest, LabelsAndNamesOfBuffersAndStreamsDoNot) {
  Plan plan = test::plan_with_every_field();
  const Digest before = digest(plan);
  int changes = 0;
  const auto check = [&] {
    ++changes;
    EXPECT_EQ(digest(plan), before);
  };
  test::Variations(check).of_words(plan);
  EXPECT_GT(changes, 10);
}

TEST(PlanDigest, CountsAreAMatrix) {
  const Digest counts = counts_digest({{0, 1, 4}, {1, 0, 8}});
  EXPECT_EQ(counts, counts_digest({{1, 0, 8}, {0, 1, 4}}));
  EXPECT_EQ(
      counts,
      counts_digest({{1, 0, 5}, {2, 1, 0}, {0, 1, 4}, {1, 0, 3}}));  // several transfers of one pair; nothing
  EXPECT_NE(counts, counts_digest({{0, 1, 8}, {1, 0, 4}}));
  EXPECT_NE(counts, counts_digest({{0, 1, 4}}));
}

// ---- of the collectives of a group ----

struct Member {
  explicit Member(Rank self) : builder(self, host_target()), comm(builder.stream("comm")) {
    group = builder.group("g", {4, 2, 7});
    buffer = builder.inout("x", DType::f32, 4096);
  }
  View view(std::int64_t numel) const { return flat_view(buffer, 0, numel); }
  View other(std::int64_t numel) const { return flat_view(buffer, 2048, numel); }
  void add(Collective collective) { builder.add(comm, std::move(collective)); }
  Digest digest() && {
    const Plan plan = std::move(builder).build({});
    return collective_digest(plan, group);
  }
  PlanBuilder builder;
  StreamId comm;
  GroupId group = -1;
  BufferId buffer = -1;
};

TEST(CollectiveDigest, MembersOfAGroupAgree) {
  const Digest counts = counts_digest({{0, 1, 16}, {2, 1, 8}});
  std::vector<Digest> digests;
  for (const Rank self : {4, 2, 7}) {
    Member member(self);
    if (self == 2) {  // steps of its own, other buffers, another offset
      const BufferId own = member.builder.temporary("own", DType::i64, 5);
      member.builder.add(member.builder.stream("compute"), Fill{flat_view(own, 0, 5), 1});
    }
    const std::int64_t in = self == 7 ? 64 : 0;
    member.add(AllGather{member.group, flat_view(member.buffer, in, 8), member.other(24)});
    member.add(ReduceScatter{member.group, ReduceOp::avg, member.view(30), member.other(10)});
    member.builder.begin_repeat(3);
    member.add(AllReduce{member.group, ReduceOp::max, member.view(5), member.view(5)});
    member.add(AllToAll{member.group, member.view(9), member.other(9)});
    member.builder.end_repeat();
    member.add(Broadcast{member.group, 1, self == 2 ? member.view(6) : View{}, member.other(6)});
    Exchange exchange{member.group, {}, {}, counts};
    if (self == 4) exchange.sends = {{1, member.view(16)}};
    if (self == 7) exchange.sends = {{1, member.view(8)}};
    if (self == 2) exchange.recvs = {{0, member.view(16)}, {2, member.other(8)}};
    member.add(std::move(exchange));
    digests.push_back(std::move(member).digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST(CollectiveDigest, EachArgumentCounts) {
  const auto of = [](const std::vector<Collective>& collectives, std::int64_t repeat = 0) {
    Member member(4);
    if (repeat > 0) member.builder.begin_repeat(repeat);
    for (const Collective& collective : collectives) member.add(collective);
    if (repeat > 0) member.builder.end_repeat();
    return std::move(member).digest();
  };
  const Member m(4);  // for its views
  const AllReduce sum{m.group, ReduceOp::sum, m.view(5), m.view(5)},
      max{m.group, ReduceOp::max, m.view(5), m.view(5)};
  const AllReduce longer{m.group, ReduceOp::sum, m.view(6), m.view(6)};
  const auto broadcast = [&](std::int32_t root) { return Broadcast{m.group, root, m.view(5), m.other(5)}; };
  const auto exchange = [&](const Digest& counts) { return Exchange{m.group, {}, {}, counts}; };
  const std::vector<Digest> all = {of({}),
                                   of({sum}),
                                   of({max}),
                                   of({longer}),
                                   of({sum, max}),
                                   of({max, sum}),
                                   of({sum}, 2),
                                   of({sum}, 3),
                                   of({sum, sum}),
                                   of({broadcast(0)}),
                                   of({broadcast(1)}),
                                   of({exchange({1, 2})}),
                                   of({exchange({1, 3})}),
                                   of({AllToAll{m.group, m.view(6), m.other(6)}}),
                                   of({AllGather{m.group, m.view(6), m.other(18)}}),
                                   of({ReduceScatter{m.group, ReduceOp::sum, m.view(18), m.other(6)}})};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " " << j;
  }
}

TEST(CollectiveDigest, OtherGroupsDoNotCount) {
  const auto of = [](bool more) {
    Member member(4);
    if (more) {
      const GroupId other = member.builder.group("other", {4, 9});
      member.builder.begin_repeat(2);
      member.add(AllReduce{other, ReduceOp::sum, member.view(5), member.view(5)});
      member.builder.end_repeat();
    }
    member.add(AllReduce{member.group, ReduceOp::sum, member.view(5), member.view(5)});
    return std::move(member).digest();
  };
  EXPECT_EQ(of(false), of(true));
}

}  // namespace
}  // namespace cp
