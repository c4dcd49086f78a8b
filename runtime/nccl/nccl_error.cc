#include "runtime/nccl/nccl_error.h"

#include <string_view>
#include <utility>

#include "runtime/errors.h"
#include "runtime/nccl_pools.h"
#include "runtime/nccl_versions.h"

namespace cp::runtime {

void throw_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what, ErrorFacts facts) {
  const char* last = ncclGetLastError(comm);
  const std::string_view details = last == nullptr ? "" : last;
  const std::string message = str(what, ": ", ncclGetErrorString(result), details.empty() ? "" : " (",
                                  trim(details), details.empty() ? "" : ")");
  // NCCL has one result, ncclInvalidUsage, for all that it refuses.
  if (says_shared_gpu(details)) {
    facts.advice = "give each rank a GPU of its own, or use --allow-shared-gpu";
    throw InvalidInput(message, std::move(facts));
  }
  if (result == ncclInvalidUsage || result == ncclInvalidArgument)
    throw InvalidInput(message, std::move(facts));
  facts.advice = shared_memory_advice(message);
  throw PeerLost(message, std::move(facts));
}

}  // namespace cp::runtime
