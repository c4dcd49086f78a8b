#include "tests/property/example_plans.h"

#include <algorithm>
#include <numeric>

#include "tests/plan/plan_writer.h"

namespace cp::testing {
namespace {

std::vector<Rank> all_ranks(std::size_t count) {
  std::vector<Rank> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::int64_t> begins(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> result(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), result.begin(), std::int64_t{0});
  return result;
}

}  // namespace

std::vector<Plan> padded_all_gather(const std::vector<std::int64_t>& sizes) {
  const std::int64_t block = *std::max_element(sizes.begin(), sizes.end());
  const auto ranks = static_cast<std::int64_t>(sizes.size());
  const std::vector<std::int64_t> begin = begins(sizes);
  std::vector<Plan> plans;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    PlanWriter plan(static_cast<Rank>(r));
    const GroupId group = plan.group("tp", all_ranks(sizes.size()));
    const BufferId x = plan.input("x", sizes[r]), y = plan.output("y", begin.back() + sizes.back());
    const BufferId padded = plan.temporary("padded", block),
                   gathered = plan.temporary("gathered", ranks * block);
    plan.add(0, Copy{flat_view(x, 0, sizes[r]), flat_view(padded, 0, sizes[r])}, {}, "pack");
    plan.add(0, Fill{flat_view(padded, sizes[r], block - sizes[r]), 0}, {}, "pad");
    plan.add(0, AllGather{group, flat_view(padded, 0, block), flat_view(gathered, 0, ranks * block)}, {},
             "gather");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      plan.add(0,
               Copy{flat_view(gathered, static_cast<std::int64_t>(i) * block, sizes[i]),
                    flat_view(y, begin[i], sizes[i])},
               {}, "unpack");
    }
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

std::vector<Plan> exchange_ring(int ranks, std::int64_t numel) {
  constexpr StreamId kCompute = 0, kComm = 1;
  std::vector<Plan> plans;
  for (Rank r = 0; r < ranks; ++r) {
    PlanWriter plan(r, {"compute", "comm"});
    const GroupId group = plan.group("cp", all_ranks(static_cast<std::size_t>(ranks)));
    const BufferId x = plan.input("x", numel), sum = plan.output("sum", numel);
    const BufferId slots = plan.temporary("slots", 2 * numel);
    const std::int32_t next = (r + 1) % ranks, previous = (r + ranks - 1) % ranks;
    plan.add(kCompute, Copy{flat_view(x, 0, numel), flat_view(sum, 0, numel)}, {}, "own");
    std::vector<StepId> uses;
    for (int hop = 0; hop + 1 < ranks; ++hop) {
      const View from = hop == 0 ? flat_view(x, 0, numel) : flat_view(slots, (hop - 1) % 2 * numel, numel);
      const View into = flat_view(slots, hop % 2 * numel, numel);
      std::vector<Edge> free;  // the slot was used two hops ago
      if (hop >= 2) free.push_back({uses[static_cast<std::size_t>(hop) - 2], 0});
      const StepId moved =
          plan.add(kComm, Exchange{group, {{next, from}}, {{previous, into}}, {}}, free, "hop");
      uses.push_back(
          plan.add(kCompute, Accumulate{ReduceOp::sum, into, flat_view(sum, 0, numel)}, {{moved, 0}}, "add"));
    }
    plans.push_back(std::move(plan).finish());
  }
  for (const StepRef& ref : steps_of(plans[0])) {
    if (is_collective(*ref.step)) fill_counts(plans, ref.id);
  }
  return plans;
}

std::vector<Plan> uneven_reduce(const std::vector<std::int64_t>& sizes) {
  const std::vector<std::int64_t> begin = begins(sizes);
  const auto ranks = static_cast<std::int32_t>(sizes.size());
  std::vector<Plan> plans;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto self = static_cast<std::size_t>(r);
    PlanWriter plan(r);
    const GroupId group = plan.group("dp", all_ranks(sizes.size()));
    const BufferId partial = plan.input("partial", begin.back() + sizes.back()),
                   shard = plan.output("shard", sizes[self]);
    const BufferId staging = plan.temporary("staging", sizes[self] * ranks);
    Exchange exchange{group, {}, {}, {}};
    for (std::int32_t peer = 0; peer < ranks; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      if (peer == r) continue;
      if (sizes[p] > 0) exchange.sends.push_back({peer, flat_view(partial, begin[p], sizes[p])});
      if (sizes[self] > 0)
        exchange.recvs.push_back({peer, flat_view(staging, peer * sizes[self], sizes[self])});
    }
    plan.add(0, exchange, {}, "send shards home");
    plan.add(0, Copy{flat_view(partial, begin[self], sizes[self]), flat_view(shard, 0, sizes[self])}, {},
             "own");
    for (std::int32_t peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      plan.add(0,
               Accumulate{ReduceOp::sum, flat_view(staging, peer * sizes[self], sizes[self]),
                          flat_view(shard, 0, sizes[self])},
               {}, "add");
    }
    plans.push_back(std::move(plan).finish());
  }
  fill_counts(plans, 0);
  return plans;
}

std::vector<Plan> double_buffered(int ranks, std::int64_t numel, std::int64_t layers) {
  constexpr StreamId kCompute = 0, kComm = 1;
  std::vector<Plan> plans;
  for (Rank r = 0; r < ranks; ++r) {
    PlanWriter plan(r, {"compute", "comm"});
    const GroupId group = plan.group("fsdp", all_ranks(static_cast<std::size_t>(ranks)));
    const std::int64_t full = ranks * numel;
    const BufferId shards = plan.input("shards", layers * numel), sums = plan.output("sums", layers * full);
    const BufferId last = plan.output("last", full);
    const BufferId slots = plan.temporary("slots", 2 * full), total = plan.temporary("total", full);
    const View slot = flat_view(slots, 0, full, {.stride = full, .period = 2});
    plan.add(kCompute, Fill{flat_view(total, 0, full), 0}, {}, "start");
    plan.begin_repeat(layers);
    const StepId gather = 1, use = 2;
    plan.add(kComm, AllGather{group, flat_view(shards, 0, numel, {.stride = numel}), slot}, {{use, 2}},
             "gather layer");
    plan.add(kCompute, Accumulate{ReduceOp::sum, slot, flat_view(total, 0, full)}, {{gather, 0}},
             "use layer");
    plan.add(kCompute, Copy{flat_view(total, 0, full), flat_view(sums, 0, full, {.stride = full})}, {},
             "keep sum");
    plan.end_repeat();
    // On the other stream: both edges mean the last iteration.
    plan.add(kComm, Copy{flat_view(slots, (layers - 1) % 2 * full, full), flat_view(last, 0, full)}, {},
             "last layer");
    plan.add(kComm, Accumulate{ReduceOp::sum, flat_view(total, 0, full), flat_view(last, 0, full)},
             {{use, 0}}, "plus sum");
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

std::vector<Plan> grid(std::int64_t numel) {
  constexpr StreamId kRows = 0, kColumns = 1;
  std::vector<Plan> plans;
  for (Rank r = 0; r < 4; ++r) {
    const Rank row = r / 2, column = r % 2;
    PlanWriter plan(r, {"rows", "columns"});
    const GroupId rows = plan.group("row", {2 * row, 2 * row + 1}),
                  columns = plan.group("column", {column, column + 2});
    const BufferId x = plan.input("x", 2 * numel, DType::i32), y = plan.output("y", 2 * numel, DType::i32);
    const BufferId z = plan.inout("z", 2 * numel, DType::i32);
    const BufferId sum = plan.temporary("sum", 2 * numel, DType::i32),
                   part = plan.temporary("part", numel, DType::i32);
    const BufferId other = plan.temporary("other", 2 * numel, DType::i32);
    const View all_x = flat_view(x, 0, 2 * numel), all_sum = flat_view(sum, 0, 2 * numel);
    const View all_other = flat_view(other, 0, 2 * numel), all_y = flat_view(y, 0, 2 * numel);
    const View all_z = flat_view(z, 0, 2 * numel), all_part = flat_view(part, 0, numel);
    const StepId reduced = plan.add(kRows, AllReduce{rows, ReduceOp::max, all_x, all_sum}, {}, "row max");
    const StepId cast = plan.add(kColumns, Broadcast{columns, 1, all_z, all_z}, {}, "column's z");
    const StepId scattered = plan.add(kColumns, ReduceScatter{columns, ReduceOp::sum, all_sum, all_part},
                                      {{reduced, 0}}, "scatter");
    // A transpose of 2 x numel, into bytes that `sum` leaves.
    const StepId turned =
        plan.add(kRows, AllToAll{rows, all_z, all_other}, {{cast, 0}, {scattered, 0}}, "swap halves");
    plan.add(kRows, Copy{View{other, 0, {numel, 2}, {1, numel}, {}}, dense_view(y, 0, {numel, 2})}, {},
             "transpose");
    plan.add(kColumns, Accumulate{ReduceOp::sum, all_part, flat_view(z, numel, numel)}, {{turned, 0}}, "add");
    plan.add(kRows, Accumulate{ReduceOp::max, all_z, all_y}, {{5, 0}}, "max");
    Plan made = std::move(plan).finish();
    made.buffers[static_cast<std::size_t>(other)].offset_bytes =
        made.buffers[static_cast<std::size_t>(sum)].offset_bytes;
    made.arena_bytes = 3 * numel * 4;
    plans.push_back(std::move(made));
  }
  return plans;
}

const std::vector<Example>& examples() {
  static const std::vector<Example> all = {
      {"padded_all_gather 3,2,0,3",
       [] {
         return padded_all_gather({3, 2, 0, 3});
       }},
      {"exchange_ring of 2", [] { return exchange_ring(2, 3); }},
      {"exchange_ring of 5", [] { return exchange_ring(5, 2); }},
      {"uneven_reduce 3,2,2",
       [] {
         return uneven_reduce({3, 2, 2});
       }},
      {"uneven_reduce 2,0,1,1",
       [] {
         return uneven_reduce({2, 0, 1, 1});
       }},
      {"double_buffered 1 layer", [] { return double_buffered(2, 2, 1); }},
      {"double_buffered 6 layers", [] { return double_buffered(3, 2, 6); }},
      {"double_buffered 7 layers", [] { return double_buffered(2, 1, 7); }},
      {"grid", [] { return grid(3); }},
  };
  return all;
}

}  // namespace cp::testing
