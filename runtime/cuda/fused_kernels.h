// FusedKernels runs the attention steps whose engine is AttentionEngine::fused, by graphs of cuDNN's. All
// steps of a plan are prepared together: their graphs are built on several threads, and what their documents
// are (lengths and offsets) is uploaded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct FusedOptions {
  // Where graphs are kept for later processes (graph_files.h). Unset: graph_folder_of_environment(). Empty:
  // nowhere.
  std::optional<std::filesystem::path> graph_folder = {};
  // Called with one line of what a user may want to know. Threads that build graphs may call it.
  std::function<void(const std::string&)> on_note = {};
};

// A fused step of a plan.
struct FusedStep {
  std::string name;  // "step 3 (attention_forward)"
  StreamId stream = 0;
  std::variant<const AttentionForward*, const AttentionBackward*> work;
};

// A step for which the library needs more workspace than the plan declares.
struct WorkspaceShortfall {
  std::string step;
  std::int64_t needed_bytes = 0, declared_bytes = 0;
};
std::string to_text(const WorkspaceShortfall& shortfall);

struct FusedPlan {
  std::vector<PreparedKernel> kernels;  // of each step; none at all in a build without cuDNN
  std::vector<WorkspaceShortfall> shortfalls;
  std::int64_t bytes_beside = 0;  // of the GPU's memory that the plan does not declare: tables and workspaces
};

// There is one for each rank and GPU. It keeps graphs for later plans.
class FusedKernels {
 public:
  // For the current device; the first fused step loads the library.
  explicit FusedKernels(FusedOptions options = {});
  ~FusedKernels();
  FusedKernels(const FusedKernels&) = delete;
  FusedKernels& operator=(const FusedKernels&) = delete;

  // Makes what the steps need, and blocks until it is there; the kernels only enqueue. Steps that need more
  // workspace than they declare get one beside the plan, one for each stream, and are noted; if the GPU has
  // no room for it, they get slower kernels that need less. The steps, the memory and this object must
  // outlive the kernels. Throws InvalidInput that names the step, if the library refuses what it asks for.
  FusedPlan prepare(std::span<const FusedStep> steps, const CudaMemory& memory);

  // How many graphs were built or read from files, since this object was made.
  std::size_t graphs_made() const;

  // Returns {"cudnn": "9.19.0"}, the version of the library that runs, not of the one at compile time.
  static std::map<std::string, std::string> library_versions();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
