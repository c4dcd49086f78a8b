// A program each of whose redistributions is of another length, so that none of its plans is used twice. Rank
// 0 says by how many bytes its heap grew from the first 200 of them to the end. Run by cprun in the tests.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <malloc.h>

#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace {

constexpr std::int64_t kWarmUp = 200;  // the cache of plans is full by then

std::int64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

void run(std::int64_t iterations) {
  cp::runtime::Job job;
  const cp::Mesh mesh({{"cp", job.world_size()}});
  std::vector<float> in(static_cast<std::size_t>(64 + iterations)), out(in);
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < iterations; ++i) {
    if (i == kWarmUp) before = heap_bytes();
    const cp::Shape shape{64 + i};
    const cp::Layout parts = cp::parse_layout("P(sum)", mesh, shape, cp::DType::f32);
    const cp::Layout whole = cp::parse_layout("R", mesh, shape, cp::DType::f32);
    job.redistribute(cp::from_local(parts, job.rank(), in.data(), shape[0] * 4),
                     cp::from_local(whole, job.rank(), out.data(), shape[0] * 4));
  }
  if (job.rank() == 0) std::printf("grew by %lld\n", static_cast<long long>(heap_bytes() - before));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? cp::parse_int(argv[1], "number of iterations") : 1000);
    return 0;
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return cp::runtime::exit_code(error.kind());
  }
}
