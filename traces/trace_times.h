// Which time belongs to which record of a trace.
#pragma once

#include <vector>

#include "shared/plan/trace.h"

namespace cp {

// For each record its time, or nothing where there is none: the i-th time of a stream is that of its i-th
// record. Throws BadTrace when the operations' names differ or a stream has more times than records. `rank`
// is for the message.
std::vector<const TimedOp*> times_of_records(const std::vector<OpRecord>& records,
                                             const std::vector<TimedOp>& times, Rank rank);

}  // namespace cp
