// A rank that lives, and says so, but comes late to a collective: rank 1 computes for as many seconds as LATE says before its second
// plan. Run by cprun in the tests.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/job.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace {

void run() {
  cp::runtime::Job job;
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const cp::Mesh mesh({{"cp", job.world_size()}});
  const cp::Layout parts = cp::parse_layout("P(sum)", mesh, {64}, cp::DType::f32);
  const cp::Layout whole = cp::parse_layout("R", mesh, {64}, cp::DType::f32);
  std::vector<float> in(64, 1), out(64);
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && job.rank() == 1)
      std::this_thread::sleep_for(std::chrono::seconds(cp::parse_int(std::getenv("LATE"), "LATE")));
    job.redistribute(cp::from_local(parts, job.rank(), in.data(), 256),
                     cp::from_local(whole, job.rank(), out.data(), 256));
  }
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
