#include "runtime/nccl/nccl_error.h"

#include <string_view>

#include "runtime/errors.h"
#include "shared/base/error.h"

namespace cp::runtime {

void throw_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  const char* last = ncclGetLastError(comm);
  const std::string_view details = last == nullptr ? "" : last;
  const std::string message = str(what, ": ", ncclGetErrorString(result), details.empty() ? "" : " (",
                                  trim(details), details.empty() ? "" : ")");
  if (details.find("Duplicate GPU") != std::string_view::npos) {
    throw InvalidInput(str(message, "; give each rank a GPU of its own, or use --allow-shared-gpu"));
  }
  if (result == ncclInvalidUsage || result == ncclInvalidArgument) throw InvalidInput(message);
  throw PeerLost(message);
}

}  // namespace cp::runtime
