// Small traces with all sections, as the runs of a few ranks leave them.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::testing {

// Each rank of 0 .. ranks-1: a copy, then two collectives of all ranks and an exchange with rank 0, on stream
// 1.
inline std::vector<RankTrace> sample_traces(Rank ranks, std::int64_t step_ns = 1000) {
  const auto n = static_cast<std::size_t>(ranks);
  Group world{"world", {}};
  for (Rank rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
  std::vector<RankTrace> traces;
  for (Rank rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> peers(n, 64), none(n, 0);
    peers[static_cast<std::size_t>(rank)] = 0;
    OpRecord copy, gather, reduce, exchange;
    copy.operation = "copy", copy.sent = {64};
    gather.stream = 1, gather.operation = "all_gather", gather.group = world, gather.sequence = 0;
    gather.dtype = DType::bf16, gather.sent = gather.received = peers;
    reduce = gather;
    reduce.operation = "all_reduce", reduce.sequence = 1, reduce.reduction = ReduceOp::sum;
    reduce.dtype = DType::f32;
    exchange = gather;
    exchange.operation = "exchange", exchange.sequence = 2, exchange.dtype = DType::i32;
    exchange.sent = exchange.received = none;
    if (rank == 0) {
      exchange.sent = peers;
    } else {
      exchange.received[0] = 64;
    }
    RankTrace trace;
    trace.rank = rank;
    trace.issued = {copy, gather, reduce, exchange};
    trace.observed = {gather, reduce, exchange};
    trace.digests = {{"out", {static_cast<std::uint64_t>(rank), 7}}};
    std::int64_t at = 0;
    for (const OpRecord& record : trace.issued) {
      trace.issued_times.push_back(
          {record.stream, record.operation, record.sequence == 0 ? "gather k" : "", at, at + step_ns});
      if (record.sequence >= 0) {
        trace.observed_times.push_back({record.stream, record.operation, "", at + 100, at + step_ns - 100});
      }
      at += step_ns;
    }
    trace.clock_offset_ns = 50 * rank;
    Environment environment;
    environment.host = "node1";
    environment.pid = 4000 + rank;
    environment.backend = "gloo";
    environment.libraries = {{"gloo", "0.5"}};
    environment.cpsim_version = "0.1.0";
    environment.world_size = ranks;
    environment.start_unix_ns = 1'709'210'096'000'000'000;
    environment.scenario_digest = Digest{1, 2};
    trace.environment = environment;
    traces.push_back(trace);
  }
  return traces;
}

}  // namespace cp::testing
