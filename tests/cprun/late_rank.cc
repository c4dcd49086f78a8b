// A rank that lives, and says so, but comes late to a collective: rank 1 computes for as many seconds as LATE says before its second
// plan, and as END_LATE says after its last, with the file NOTE as the end. Other ranks say when their Job ended before that. Run by
// cprun in the tests.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/job.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace {

void sleep_for(const char* variable) {
  if (const char* seconds = std::getenv(variable))
    std::this_thread::sleep_for(std::chrono::seconds(cp::parse_int(seconds, variable)));
}

cp::Rank run() {
  cp::runtime::Job job;
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const cp::Mesh mesh({{"cp", job.world_size()}});
  const cp::Layout parts = cp::parse_layout("P(sum)", mesh, {64}, cp::DType::f32);
  const cp::Layout whole = cp::parse_layout("R", mesh, {64}, cp::DType::f32);
  std::vector<float> in(64, 1), out(64);
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && job.rank() == 1) sleep_for("LATE");
    job.redistribute(cp::from_local(parts, job.rank(), in.data(), 256),
                     cp::from_local(whole, job.rank(), out.data(), 256));
  }
  if (job.rank() == 1) {
    sleep_for("END_LATE");
    if (const char* note = std::getenv("NOTE")) std::ofstream(note) << "end\n";
  }
  return job.rank();
}

}  // namespace

int main() {
  try {
    const cp::Rank rank = run();
    if (const char* note = std::getenv("NOTE"); note != nullptr && !std::filesystem::exists(note))
      std::printf("rank %d ended before rank 1\n", rank);
    return 0;
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
