#include "sim/proof/run/pass_traces.h"

#include <algorithm>

#include "shared/plan/transfer_check.h"

namespace cp::sim {

std::int64_t keep_traces(const std::vector<RankTrace>& traces, const std::vector<bool>& members,
                         std::vector<RankTrace>& kept, std::vector<Verdict>& verdicts) {
  if (const auto fault = find_transfer_fault(traces)) throw *fault;
  const auto difference = first_difference(traces, traces);
  const auto verdict = std::find_if(verdicts.begin(), verdicts.end(),
                                    [](const Verdict& known) { return known.name == "traces"; });
  if (verdict == verdicts.end()) {
    verdicts.push_back({"traces", !difference, difference.value_or("")});
  } else if (difference) {
    *verdict = {"traces", false, *difference};
  }
  std::int64_t delivered = 0;
  std::size_t place = 0;
  for (const RankTrace& trace : traces) {
    if (!members[static_cast<std::size_t>(trace.rank)]) continue;
    for (const OpRecord& record : trace.observed) {
      for (const std::int64_t bytes : record.received) delivered += bytes;
    }
    if (kept.size() <= place) kept.emplace_back();
    RankTrace& sum = kept[place++];
    sum.rank = trace.rank;
    sum.issued.insert(sum.issued.end(), trace.issued.begin(), trace.issued.end());
    sum.observed.insert(sum.observed.end(), trace.observed.begin(), trace.observed.end());
    sum.digests.insert(trace.digests.begin(), trace.digests.end());
  }
  return delivered;
}

}  // namespace cp::sim
