#include "tests/gpu/gpu_processes.h"

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "shared/base/text.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/runtime/processes.h"

namespace cp::testing {

void GpuProcesses::SetUp() {
#ifndef CP_GPU_EMULATED
  CP_REQUIRE_GPU();
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // of the process that forks
}

int run_gpu_processes(int count, const std::function<std::string(Rank)>& body) {
  const std::vector<std::string> said = run_processes(count, body, std::chrono::seconds(120));
  int status = 0;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    std::fprintf(stderr, "rank %zu: %s\n", rank, said[rank].c_str());
    status = 1;
  }
  return status;
}

std::string lacks(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (message.find(word) == std::string::npos) return str("'", word, "' is missing in: ", message);
  }
  return "";
}

}  // namespace cp::testing
