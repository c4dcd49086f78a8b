#include "traces/trace_times.h"

#include <cstddef>
#include <map>

#include "traces/record_file.h"

namespace cp {

std::vector<const TimedOp*> times_of_records(const std::vector<OpRecord>& records,
                                             const std::vector<TimedOp>& times, Rank rank) {
  std::map<StreamId, std::vector<const TimedOp*>> on_stream;
  for (const TimedOp& time : times) on_stream[time.stream].push_back(&time);
  std::map<StreamId, std::size_t> used;
  std::vector<const TimedOp*> result;
  for (const OpRecord& record : records) {
    const auto& timed = on_stream[record.stream];
    const std::size_t at = used[record.stream]++;
    const TimedOp* time = at < timed.size() ? timed[at] : nullptr;
    if (time != nullptr && time->operation != record.operation) {
      throw BadTrace(str("rank ", rank, ", stream ", record.stream, ": operation ", at, " is ",
                         record.operation, ", but the time in its place belongs to ", time->operation));
    }
    result.push_back(time);
  }
  for (const auto& [stream, timed] : on_stream) {
    if (timed.size() <= used[stream]) continue;
    throw BadTrace(str("rank ", rank, ", stream ", stream, ": there are ", timed.size(), " times for ",
                       used[stream], " operations"));
  }
  return result;
}

}  // namespace cp
