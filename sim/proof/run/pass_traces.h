// The traces of a run of several passes on the fabric, put together by rank, and what is wrong with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::sim {

// A verdict on one invariant.
struct Verdict {
  std::string name;  // "mask cells", "bytes", "peak memory", "traces"
  bool holds = true;
  std::string finding;  // in words, what does not hold; empty if it holds
};

// Adds the traces of a pass to `kept`, which has one for each member, by ascending rank. `members` says by
// rank who took part. Adds the verdict "traces", whether what was issued is what was observed, or worsens it
// if it is there. Returns the bytes that all ranks received. Throws the fault of a transfer that is not what
// was sent.
std::int64_t keep_traces(const std::vector<RankTrace>& traces, const std::vector<bool>& members,
                         std::vector<RankTrace>& kept, std::vector<Verdict>& verdicts);

}  // namespace cp::sim
