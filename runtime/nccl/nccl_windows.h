// The symmetric segments of plans as windows of NCCL (ncclCommWindowRegister), and what the library has for
// copy engines.
//
// What NCCL asks for (2.28 to 2.30, dev_runtime.cc): memory of ncclMemAlloc, whose allocations have the same
// size on all ranks of the communicator; a beginning at a multiple of NCCL_WIN_REQUIRED_ALIGNMENT in it; and
// that all ranks register together. So the segment is an allocation of its own. The windows go before the
// memory does, and the memory before the communicator.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nccl.h>

#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl_versions.h"
#include "shared/plan/plan.h"
#include "shared/plan/target.h"

namespace cp::runtime {

// A segment as a communicator knows it. `window` is an ncclWindow_t, which older headers lack.
struct NcclWindow {
  ncclComm_t comm = nullptr;
  void* window = nullptr;
};

// For the rank's thread.
class NcclWindows {
 public:
  explicit NcclWindows(NcclHandles& handles) : handles_(handles) {}

  // Registers the segment with those members that have copy engines, in the order of their names, which is
  // the same on all ranks; blocks until all members of each do so. Adds to `windows` as it goes, so that
  // there is one for each member (by GroupId), and none where there are no copy engines. Opens the way for
  // puts where the plan has Exchanges. Throws what throw_nccl() throws, and InvalidInput where NCCL gives no
  // window.
  void add(const Plan& plan, const std::vector<NcclCommunicatorPtr>& members, std::span<std::byte> segment,
           std::vector<NcclWindow>& windows);
  // Waits for nobody. Nothing that uses them may be under way.
  void remove(std::vector<NcclWindow>& windows);

 private:
  NcclHandles& handles_;
};

// The same target without what these versions cannot give to copy engines (Target::sm_only). It lives as long
// as the process.
const Target& with_copy_engines_of(const Target& target, const NcclVersions& versions);

// Throws InvalidInput if the plan has a collective that these versions cannot give to copy engines, as plans
// for other targets may.
void refuse_copy_engines(const Plan& plan, const NcclVersions& versions);

}  // namespace cp::runtime
