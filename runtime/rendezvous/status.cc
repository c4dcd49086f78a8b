#include "runtime/rendezvous/status.h"

#include <algorithm>
#include <string_view>

#include "shared/base/text.h"

namespace cp::runtime {

std::string to_string(const Progress& progress) {
  if (progress.sequence < 0) return "before its first collective";
  const std::string step = progress.step < 0 ? "" : str(", step ", progress.step);
  return str(progress.operation, " #", progress.sequence, " of ", progress.group, step);
}

std::string last_heard(const Progress& progress, std::chrono::milliseconds age) {
  using std::chrono::milliseconds;
  const milliseconds shown = age < std::chrono::seconds(1) ? age : age / 100 * 100;
  return str("last heard ", duration_text(shown), " ago ", progress.sequence < 0 ? "" : "at ",
             to_string(progress));
}

std::string to_string(const Failure& failure) {
  if (failure.rank < 0) return failure.message;
  const std::string where =
      failure.host.empty() ? "" : str(" (host ", failure.host, ", pid ", failure.pid, ")");
  const std::string when = failure.progress.sequence < 0 ? ""
                           : failure.progress_age.count() == 0
                               ? str(" at ", to_string(failure.progress))
                               : str(", ", last_heard(failure.progress, failure.progress_age));
  return str("rank ", failure.rank, where, when, ": ", failure.message);
}

ErrorFacts facts_of(const Failure& failure) {
  ErrorFacts facts;
  if (failure.rank >= 0) facts.culprits = {failure.rank};
  if (failure.progress.sequence < 0) return facts;
  facts.operation = failure.progress.operation, facts.group = failure.progress.group;
  facts.sequence = failure.progress.sequence;
  return facts;
}

std::string duration_text(std::chrono::milliseconds duration) {
  if (duration.count() < 1000) return str(duration.count(), " ms");
  return str(static_cast<double>(duration.count()) / 1000, " s");
}

std::string describe_wait(const Progress& awaited, std::chrono::milliseconds waited,
                          const std::vector<RankStatus>& ranks) {
  std::vector<Rank> missing, waiting;
  for (const Rank member : members_of(awaited.group)) {
    const auto status = std::ranges::find(ranks, member, &RankStatus::rank);
    if (status == ranks.end()) continue;
    const auto group = status->groups.find(awaited.group);
    const bool has_begun = group != status->groups.end() && group->second.sequence >= awaited.sequence;
    (has_begun ? waiting : missing).push_back(member);
  }
  const std::string what = str(awaited.operation, " #", awaited.sequence, " of group ", awaited.group,
                               " after ", duration_text(waited));
  if (missing.empty()) return str("all ranks have joined ", what, ", and it has not ended");
  const std::string others =
      waiting.empty() ? "" : str("; ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait");
  return str(ranks_text(missing), missing.size() == 1 ? " has" : " have", " not joined ", what, others);
}

}  // namespace cp::runtime
