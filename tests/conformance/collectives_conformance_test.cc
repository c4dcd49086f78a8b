// Collectives: each operation x dtype x group x size, in place and not, against their definitions.
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {
namespace {

Values concatenate(ReduceOp op, const std::vector<Rank>& ranks, std::int64_t numel) {
  Values all;
  for (const Rank rank : ranks) {
    const Values block = samples(op, rank, numel);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

bool allowed(ReduceOp op, DType dtype) { return op != ReduceOp::avg || is_floating(dtype); }

constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::product};

Rank rank_at(const std::vector<Rank>& ranks, std::int64_t index) {
  return ranks[static_cast<std::size_t>(index)];
}

TEST_P(DeviceConformance, AllGatherPutsBlocksInGroupOrder) {
  for_each_case("all_gather", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
    const auto n = static_cast<std::int64_t>(ranks.size());
    expect_outputs(
        {.ranks = ranks,
         .add =
             [&](PlanBuilder& b, GroupId group, std::int64_t) {
               const BufferId in = b.input("in", dtype, numel), out = b.output("out", dtype, n * numel);
               b.add(b.stream("s"), AllGather{group, flat_view(in, 0, numel), flat_view(out, 0, n * numel)});
             },
         .inputs =
             [&](std::int64_t index) {
               return Contents{{"in", samples(ReduceOp::sum, rank_at(ranks, index), numel)}};
             },
         .expected = [&](std::int64_t) { return concatenate(ReduceOp::sum, ranks, numel); }});
  });
}

TEST_P(DeviceConformance, AllGatherInPlaceReadsItsOwnBlock) {
  for_each_case("all_gather", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
    const auto n = static_cast<std::int64_t>(ranks.size());
    expect_outputs({.ranks = ranks,
                    .add =
                        [&](PlanBuilder& b, GroupId group, std::int64_t index) {
                          const BufferId out = b.inout("out", dtype, n * numel);
                          b.add(b.stream("s"), AllGather{group, flat_view(out, index * numel, numel),
                                                         flat_view(out, 0, n * numel)});
                        },
                    .inputs =
                        [&](std::int64_t index) {
                          Values values(static_cast<std::size_t>(n * numel), 77);
                          const Values block = samples(ReduceOp::sum, rank_at(ranks, index), numel);
                          std::copy(block.begin(), block.end(), values.begin() + index * numel);
                          return Contents{{"out", values}};
                        },
                    .expected = [&](std::int64_t) { return concatenate(ReduceOp::sum, ranks, numel); }});
  });
}

TEST_P(DeviceConformance, ReduceScatterGivesEachMemberItsBlock) {
  for (const bool in_place : {false, true}) {
    for (const ReduceOp op : kReductions) {
      SCOPED_TRACE(str(name(op), in_place ? " in place" : ""));
      for_each_case("reduce_scatter", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
        if (!allowed(op, dtype)) return;
        const auto n = static_cast<std::int64_t>(ranks.size());
        const auto block = [&](std::int64_t index) {
          Values values;
          for (std::int64_t i = index * numel; i < (index + 1) * numel; ++i)
            values.push_back(reduced(op, ranks, i));
          return values;
        };
        expect_outputs(
            {.ranks = ranks,
             .add =
                 [&](PlanBuilder& b, GroupId group, std::int64_t index) {
                   const BufferId out = b.inout("out", dtype, in_place ? n * numel : numel);
                   const BufferId in = in_place ? out : b.input("in", dtype, n * numel);
                   b.add(b.stream("s"), ReduceScatter{group, op, flat_view(in, 0, n * numel),
                                                      flat_view(out, in_place ? index * numel : 0, numel)});
                 },
             .inputs =
                 [&](std::int64_t index) {
                   return Contents{{in_place ? "out" : "in", samples(op, rank_at(ranks, index), n * numel)}};
                 },
             .expected =
                 [&](std::int64_t index) {
                   if (!in_place) return block(index);
                   Values values = samples(op, rank_at(ranks, index), n * numel);  // the other blocks stay
                   const Values own = block(index);
                   std::copy(own.begin(), own.end(), values.begin() + index * numel);
                   return values;
                 }});
      });
    }
  }
}

TEST_P(DeviceConformance, AllReduceGivesEverybodyTheReduction) {
  for (const bool in_place : {false, true}) {
    for (const ReduceOp op : kReductions) {
      SCOPED_TRACE(str(name(op), in_place ? " in place" : ""));
      for_each_case("all_reduce", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
        if (!allowed(op, dtype)) return;
        expect_outputs(
            {.ranks = ranks,
             .add =
                 [&](PlanBuilder& b, GroupId group, std::int64_t) {
                   const BufferId out = b.inout("out", dtype, numel),
                                  in = in_place ? out : b.input("in", dtype, numel);
                   b.add(b.stream("s"),
                         AllReduce{group, op, flat_view(in, 0, numel), flat_view(out, 0, numel)});
                 },
             .inputs =
                 [&](std::int64_t index) {
                   return Contents{{in_place ? "out" : "in", samples(op, rank_at(ranks, index), numel)}};
                 },
             .expected =
                 [&](std::int64_t) {
                   Values values;
                   for (std::int64_t i = 0; i < numel; ++i) values.push_back(reduced(op, ranks, i));
                   return values;
                 }});
      });
    }
  }
}

TEST_P(DeviceConformance, AllToAllTransposesBlocks) {
  for_each_case("all_to_all", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
    const auto n = static_cast<std::int64_t>(ranks.size());
    expect_outputs({.ranks = ranks,
                    .add =
                        [&](PlanBuilder& b, GroupId group, std::int64_t) {
                          const BufferId in = b.input("in", dtype, n * numel),
                                         out = b.output("out", dtype, n * numel);
                          b.add(b.stream("s"),
                                AllToAll{group, flat_view(in, 0, n * numel), flat_view(out, 0, n * numel)});
                        },
                    .inputs =
                        [&](std::int64_t index) {
                          return Contents{{"in", samples(ReduceOp::sum, rank_at(ranks, index), n * numel)}};
                        },
                    .expected =
                        [&](std::int64_t index) {
                          Values values;
                          for (const Rank from : ranks) {
                            for (std::int64_t i = 0; i < numel; ++i)
                              values.push_back(sample(ReduceOp::sum, from, index * numel + i));
                          }
                          return values;
                        }});
  });
}

TEST_P(DeviceConformance, BroadcastReadsTheRootAlone) {
  for (const bool in_place : {false, true}) {
    for_each_case("broadcast", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
      for (std::size_t root = 0; root < ranks.size(); ++root) {
        SCOPED_TRACE(str("root ", root, in_place ? " in place" : ""));
        expect_outputs(
            {.ranks = ranks,
             .add =
                 [&](PlanBuilder& b, GroupId group, std::int64_t) {
                   const BufferId out = b.inout("out", dtype, numel),
                                  in = in_place ? out : b.input("in", dtype, numel);
                   b.add(b.stream("s"), Broadcast{group, static_cast<std::int32_t>(root),
                                                  flat_view(in, 0, numel), flat_view(out, 0, numel)});
                 },
             .inputs =
                 [&](std::int64_t index) {
                   return Contents{
                       {in_place ? "out" : "in", samples(ReduceOp::sum, rank_at(ranks, index), numel)}};
                 },
             .expected = [&](std::int64_t) { return samples(ReduceOp::sum, ranks[root], numel); }});
      }
    });
  }
}

// What member `from` sends to `to` in transfer `part` of two: uneven, often nothing.
std::int64_t split(std::int64_t from, std::int64_t to, std::int64_t part, std::int64_t numel) {
  return from == to ? 0 : (from * 3 + to * 5 + part * 2) % 4 * numel;
}

TEST_P(DeviceConformance, ExchangeMatchesTransfersWithAPeerInOrder) {
  for_each_case("exchange", [&](DType dtype, const std::vector<Rank>& ranks, std::int64_t numel) {
    const auto n = static_cast<std::int64_t>(ranks.size());
    std::vector<Count> counts;
    for (std::int64_t from = 0; from < n; ++from) {
      for (std::int64_t to = 0; to < n; ++to) {
        const std::int64_t total = split(from, to, 0, numel) + split(from, to, 1, numel);
        if (total > 0)
          counts.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to), total});
      }
    }
    const auto total_of = [&](std::int64_t index, bool sent) {
      std::int64_t total = 0;
      for (std::int64_t peer = 0; peer < n; ++peer) {
        for (const std::int64_t part : {0, 1})
          total += sent ? split(index, peer, part, numel) : split(peer, index, part, numel);
      }
      return total;
    };
    // Parts lie by part, then by peer, and are issued with descending peers: order counts between two ranks
    // only.
    const auto transfers = [&](BufferId buffer, std::int64_t index, bool sent) {
      std::vector<Transfer> result;
      std::int64_t offset = 0;
      for (const std::int64_t part : {0, 1}) {
        for (std::int64_t peer = n - 1; peer >= 0; --peer) {
          const std::int64_t count = sent ? split(index, peer, part, numel) : split(peer, index, part, numel);
          if (count > 0)
            result.push_back({static_cast<std::int32_t>(peer), flat_view(buffer, offset, count)});
          offset += count;
        }
      }
      return result;
    };
    expect_outputs(
        {.ranks = ranks,
         .add =
             [&](PlanBuilder& b, GroupId group, std::int64_t index) {
               const BufferId in = b.input("in", dtype, total_of(index, true)),
                              out = b.output("out", dtype, total_of(index, false));
               b.add(b.stream("s"), Exchange{group, transfers(in, index, true), transfers(out, index, false),
                                             counts_digest(counts)});
             },
         .inputs =
             [&](std::int64_t index) {
               return Contents{{"in", samples(ReduceOp::sum, rank_at(ranks, index), total_of(index, true))}};
             },
         .expected =
             [&](std::int64_t index) {
               Values values;
               for (const std::int64_t part : {0, 1}) {
                 for (std::int64_t from = n - 1; from >= 0; --from) {
                   std::int64_t offset = 0;  // of this block at its sender
                   for (const std::int64_t p : {0, 1}) {
                     for (std::int64_t to = n - 1; to >= 0; --to) {
                       if (p < part || (p == part && to > index)) offset += split(from, to, p, numel);
                     }
                   }
                   for (std::int64_t i = 0; i < split(from, index, part, numel); ++i) {
                     values.push_back(sample(ReduceOp::sum, rank_at(ranks, from), offset + i));
                   }
                 }
               }
               return values;
             }});
  });
}

}  // namespace
}  // namespace cp::conformance
