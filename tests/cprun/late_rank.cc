// A rank that lives, and says so, but comes late to a collective: rank 1 computes for as many seconds as LATE
// says before its second plan, or until the file LATE_UNTIL exists; and as many as END_LATE says after its
// last, with the file NOTE as the end. Other ranks say when their Job ended before that. Run by cprun in the
// tests.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#ifdef CP_HAVE_NCCL
#include "runtime/cuda/gpu_bytes.h"
#endif
#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace {

void sleep_for(const char* variable) {
  if (const char* seconds = std::getenv(variable))
    std::this_thread::sleep_for(std::chrono::seconds(cp::parse_int(seconds, variable)));
}

void wait_for_file(const char* variable) {
  const char* path = std::getenv(variable);
  while (path != nullptr && !std::filesystem::exists(path))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// Two buffers of 64 elements in the memory that the job's lie in.
struct Buffers {
  explicit Buffers(bool on_host) {
#ifdef CP_HAVE_NCCL
    if (!on_host) {
      gpu = cp::runtime::GpuBytes(512);
      in = reinterpret_cast<float*>(gpu.data()), out = in + 64;
      return;
    }
#endif
    static_cast<void>(on_host);
    host.resize(128, 1);
    in = host.data(), out = in + 64;
  }

#ifdef CP_HAVE_NCCL
  cp::runtime::GpuBytes gpu;
#endif
  std::vector<float> host;
  float *in = nullptr, *out = nullptr;
};

cp::Rank run() {
  std::optional<Buffers> buffers;  // they outlive the job
  cp::runtime::Job job;
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const cp::Mesh mesh({{"cp", job.world_size()}});
  const cp::Layout parts = cp::parse_layout("P(sum)", mesh, {64}, cp::DType::f32);
  const cp::Layout whole = cp::parse_layout("R", mesh, {64}, cp::DType::f32);
  buffers.emplace(job.host_memory());
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && job.rank() == 1) {
      sleep_for("LATE");
      wait_for_file("LATE_UNTIL");
    }
    job.redistribute(cp::from_local(parts, job.rank(), buffers->in, 256),
                     cp::from_local(whole, job.rank(), buffers->out, 256));
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
    return cp::runtime::exit_code(error.kind());
  }
}
