// DirectGloo: a few collectives written on Gloo with nothing in between. What plans are measured against
// (benchmarks/gloo_benchmark.cc).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "shared/base/types.h"

namespace cp::runtime {

class DirectGloo {
 public:
  // Ranks 0 .. num_ranks-1, connected over loopback; they find one another in the directory.
  DirectGloo(Rank rank, int num_ranks, const std::string& store_directory);
  ~DirectGloo();

  void barrier();
  // `numel`: of the input of all_gather and all_reduce; of what exchange sends to and receives from each
  // peer, whose block lies at its rank.
  void all_gather(float* in, float* out, std::size_t numel);
  void all_reduce(float* in, float* out, std::size_t numel);  // sum
  void exchange(float* in, float* out, std::size_t numel);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cp::runtime
