// What ranks compare while they run: which collectives of a group each has begun. GlooDevice and NcclDevice
// count and digest them here, so that a job's server finds the same on all members (rendezvous/divergence.h),
// and messages say the same numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// By StepId, {} for a step that is no collective: its canonical_digest() and the inputs of its plan. So equal
// collectives of two plans differ, since what the plans do between them may differ. Made once for each
// prepared plan, and used each time that a step runs.
std::vector<Digest> collective_digests(const Plan& plan);

// The digest of all collectives of a group, from that of all before the latest (at first {}) and the
// latest's. Equal on two members where both have begun the same collectives of the same plans in the same
// order.
Digest continued(const Digest& before, const Digest& collective);

// The collectives of one group that a rank has begun. For one thread at a time: the collectives of a group
// are on one stream.
class BegunCollectives {
 public:
  struct Point {
    std::int64_t number = 0;    // since the device was made
    std::int64_t sequence = 0;  // since reset_sequence()
    Digest digest;              // of all up to this one
  };
  // One more, whose digest is that of collective_digests().
  Point begin(const Digest& collective);

  std::int64_t next_sequence() const { return next_.sequence; }
  void reset_sequence() { next_.sequence = 0; }

 private:
  Point next_;  // but for the digest, which is of those before it
};

}  // namespace cp::runtime
