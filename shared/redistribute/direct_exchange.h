// What the planner's chain is compared with in explanations: one exchange straight from source to target.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/redistribute/redistribution.h"

namespace cp {

struct DirectExchange {
  double time_us = 0;                   // of the slowest rank, with casts
  std::int64_t bytes_received_max = 0;  // payload, largest over the ranks
  std::int64_t peak_bytes = 0;          // source + target + temporaries, largest over the ranks
  bool keeps_bound = true;              // its temporaries are within max_memory_factor x 2M
};

// Nothing where values are still to be reduced or the layouts are equivalent. Throws InvalidInput as
// validate_redistribution() does.
std::optional<DirectExchange> direct_exchange(const Layout& source, const Layout& target,
                                              const RedistributeOptions& options = {});

}  // namespace cp
