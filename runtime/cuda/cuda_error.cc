#include "runtime/cuda/cuda_error.h"

#include "runtime/errors.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

// Errors after which every call of the process fails: its work on the device is lost.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
      return true;
#if CUDART_VERSION >= 12080
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
      return true;
#endif
    default:
      return false;
  }
}

}  // namespace

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // it stays the thread's last one otherwise, which libraries ask for
  const std::string text = str(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  if (is_sticky(error)) throw PeerLost(str("this process can no longer use the GPU: ", text));
  throw InvalidInput(text);
}

}  // namespace cp::runtime
