// ProgressLog: what a rank has begun lately on each group, for its heartbeats.
//
// Heartbeats are rare and collectives many, and two ranks are compared at sequence numbers that both sent. So
// each group keeps its last collectives, and for each power of two the last whose number it divides: ranks
// that are d apart have one in common unless a multiple of a power above d lies between them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/rendezvous/status.h"

namespace cp::runtime {

class ProgressLog {
 public:
  // For each collective as it begins, in order; for any thread. Sequence numbers of a group grow for as long
  // as the job lasts: one that starts again needs another text ("run 2 cp[0,1]").
  void set(std::string_view group, std::int64_t sequence, std::string_view operation, const Digest& digest,
           std::int64_t step);

  // What was not taken yet of the above, by group in order; and the last of all.
  std::vector<Progress> take();
  Progress latest() const;
  // The last of each group.
  std::vector<Progress> latest_of_groups() const;

 private:
  // Chosen: ranks whose heartbeats are up to 32 collectives apart share a recent point; the 24 levels
  // are the powers up to 2^23, and multiples of higher powers share the last one.
  static constexpr std::size_t kRecent = 32, kLevels = 24;
  struct Point {
    std::int64_t sequence = -1, step = -1;
    std::string operation;
    Digest digest;
  };
  struct Group {
    std::array<Point, kRecent> recent;  // by sequence number modulo
    std::array<Point, kLevels> levels;
    std::int64_t taken = -1, last = -1;
    const Point& latest() const { return recent[static_cast<std::size_t>(last) % kRecent]; }
  };

  mutable std::mutex mutex_;
  std::map<std::string, Group, std::less<>> groups_;
  const std::string* latest_name_ = nullptr;  // of groups_
  Group* latest_ = nullptr;
};

}  // namespace cp::runtime
