// DirectGloo runs a few collectives as a program would that calls Gloo itself, without plans, streams or
// checksums. benchmarks/gloo_benchmark.cc compares plans on GlooDevice with it.
//
// Every function blocks until the transfers of this rank are done. All ranks must call the same functions in
// the same order with the same `numel`. Errors are Gloo's own exceptions. The object is for one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "shared/base/types.h"

namespace cp::runtime {

class DirectGloo {
 public:
  // Connects this rank with the ranks 0 .. num_ranks-1 over the loopback interface. They find one another by
  // files in `store_directory`.
  DirectGloo(Rank rank, int num_ranks, const std::string& store_directory);
  ~DirectGloo();

  void barrier();
  // `in` has numel floats; `out` gets num_ranks * numel, in the order of the ranks.
  void all_gather(float* in, float* out, std::size_t numel);
  // `in` and `out` have numel floats each; `out` gets the sums over all ranks.
  void all_reduce(float* in, float* out, std::size_t numel);
  // `in` and `out` have num_ranks blocks of numel floats each. Block i of `in` goes to rank i, and block i of
  // `out` comes from rank i. The rank's own blocks are not touched.
  void exchange(float* in, float* out, std::size_t numel);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cp::runtime
