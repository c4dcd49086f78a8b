// Where a checkpoint that is written stands: what a process that ends at any moment may leave behind it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

namespace cp {

// What a rank has just done, in order. Whoever adds one calls ReachedPhase behind it: tests end a rank at
// each.
enum class CheckpointPhase : std::uint8_t {
  begins,        // nothing yet
  folder_made,   // the partial one, empty
  files_made,    // with their headers and sizes
  writing,       // a rank's first elements
  written,       // its last ones, which may be in memory alone
  synchronised,  // they are on the disk
  summed,        // its sums are left for rank 0
  collected,     // the sums of all ranks are read, and their files gone
  described,     // checkpoint.json is written, and the folder synchronised
  replaced,      // what had the checkpoint's name before is gone
  renamed,       // the folder has its name
  committed,     // and keeps it after a loss of power
  old_moved,     // an old checkpoint has lost its name
  old_torn,      // and one of its files
  old_removed,   // and is gone
  last = old_removed,
};

struct CheckpointPhaseFacts {
  CheckpointPhase phase;
  std::string_view name;
  bool of_each_rank;  // or of rank 0 alone
};

// All of them, in order.
inline constexpr std::array kCheckpointPhases = {
    CheckpointPhaseFacts{CheckpointPhase::begins, "begins", false},
    CheckpointPhaseFacts{CheckpointPhase::folder_made, "folder_made", false},
    CheckpointPhaseFacts{CheckpointPhase::files_made, "files_made", false},
    CheckpointPhaseFacts{CheckpointPhase::writing, "writing", true},
    CheckpointPhaseFacts{CheckpointPhase::written, "written", true},
    CheckpointPhaseFacts{CheckpointPhase::synchronised, "synchronised", true},
    CheckpointPhaseFacts{CheckpointPhase::summed, "summed", true},
    CheckpointPhaseFacts{CheckpointPhase::collected, "collected", false},
    CheckpointPhaseFacts{CheckpointPhase::described, "described", false},
    CheckpointPhaseFacts{CheckpointPhase::replaced, "replaced", false},
    CheckpointPhaseFacts{CheckpointPhase::renamed, "renamed", false},
    CheckpointPhaseFacts{CheckpointPhase::committed, "committed", false},
    CheckpointPhaseFacts{CheckpointPhase::old_moved, "old_moved", false},
    CheckpointPhaseFacts{CheckpointPhase::old_torn, "old_torn", false},
    CheckpointPhaseFacts{CheckpointPhase::old_removed, "old_removed", false},
};
static_assert(kCheckpointPhases.size() == static_cast<std::size_t>(CheckpointPhase::last) + 1,
              "each phase has its facts");

// Is told of each phase by the rank that has reached it; may be empty.
using ReachedPhase = std::function<void(CheckpointPhase)>;

inline void tell(const ReachedPhase& reached, CheckpointPhase phase) {
  if (reached) reached(phase);
}

}  // namespace cp
