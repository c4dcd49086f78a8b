// KnownParts keeps what is known of parts of steps that several layouts share (part_key.h): clocks of their
// replays, and what their plans declare.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "shared/base/digest.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/timeline/rank_replay.h"

namespace cp::sim {

// Several threads may use one: whoever comes first finds a value, and two at once find the same.
template <class T>
class KnownByDigest {
 public:
  // Beyond that many values all are forgotten, which only means that they are found again.
  explicit KnownByDigest(std::size_t most) : most_(most) {}

  // Null where nothing is known.
  std::shared_ptr<const T> find(const Digest& key) const {
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : found->second;
  }
  std::shared_ptr<const T> keep(const Digest& key, T value) {
    auto kept = std::make_shared<const T>(std::move(value));
    const std::scoped_lock lock(mutex_);
    if (known_.size() == most_) known_.clear();
    return known_.emplace(key, std::move(kept)).first->second;
  }

 private:
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::map<Digest, std::shared_ptr<const T>> known_;
};

// Of one question and one set of RateFactors.
struct KnownParts {
  // Chosen: a clock takes a KiB or less, and the names and sizes of a part's buffers take some KiB, so that
  // each of these stays below 16 MiB.
  KnownByDigest<PlanMemory> memories{4096};  // by memory_key()
  // By clock_key(). Updates are apart: a search asks for one of each family that it opens, and passes that
  // are asked for often should not be forgotten for these.
  KnownByDigest<StepClock>& clocks(StepPart part) { return part == StepPart::update ? updates : passes; }

  KnownByDigest<StepClock> passes{16384}, updates{16384};
};

}  // namespace cp::sim
