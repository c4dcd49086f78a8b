// BegunCollectives: counts and digests the collectives that a rank has begun on one group. GlooDevice and
// NcclDevice both use it. So the job's server can compare all members of a group
// (rendezvous/divergence.h), and messages show the same numbers on every device.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Returns a digest for each step, by StepId; {} for a step that is not a collective. It is made from the
// step's canonical_digest() and the inputs of its plan. So equal collectives of two different plans have
// different digests, because the plans may do different things between them. Call it once for each prepared
// plan.
std::vector<Digest> collective_digests(const Plan& plan);

// Returns the digest of all collectives of a group so far, from the digest of those before the latest one ({}
// at first) and the digest of the latest one. It is equal on two members if both have begun the same
// collectives of the same plans in the same order.
Digest continued(const Digest& before, const Digest& collective);

// The collectives of one group that a rank has begun. One thread at a time may use it; that is no limit,
// because all collectives of a group are on one stream.
class BegunCollectives {
 public:
  struct Point {
    std::int64_t number = 0;    // since the device was made
    std::int64_t sequence = 0;  // since reset_sequence()
    Digest digest;              // of all collectives up to this one
  };
  // Counts one more collective. `collective` is its digest from collective_digests().
  Point begin(const Digest& collective);

  std::int64_t next_sequence() const { return next_.sequence; }
  void reset_sequence() { next_.sequence = 0; }

 private:
  Point next_;  // the numbers of the next collective, and the digest of those before it
};

}  // namespace cp::runtime
