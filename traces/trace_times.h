// Finds out which time belongs to which record of a trace. (A device reports times when it has them, so
// traces hold them apart from the records.)
#pragma once

#include <vector>

#include "shared/plan/trace.h"

namespace cp {

// For each record its time, or null if there is none: the i-th time of a stream belongs to the stream's i-th
// record. Throws BadTrace if the names of the operations differ, or if a stream has more times than records.
// `rank` is for the message.
std::vector<const TimedOp*> times_of_records(const std::vector<OpRecord>& records,
                                             const std::vector<TimedOp>& times, Rank rank);

}  // namespace cp
