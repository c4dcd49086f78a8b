// libcuda.so.1 of a machine without a GPU, for asking cuDNN about GPUs that are not there: there is no
// device, and loading the kernels of a plan, which cuDNN does when it makes one, succeeds without doing
// anything. Nothing can be launched.
//
// tests/cudnn loads it by its path; cuDNN, which asks the loader for libcuda.so.1 later, then gets it.
extern "C" {

using Result = int;  // CUresult
constexpr Result kSuccess = 0, kNoDevice = 100, kStubLibrary = 34;

#define FAKE_DRIVER_EXPORT __attribute__((visibility("default")))

FAKE_DRIVER_EXPORT Result cuInit(unsigned) { return kNoDevice; }
FAKE_DRIVER_EXPORT Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
FAKE_DRIVER_EXPORT Result cuGetErrorString(Result, const char** text) {
  *text = "no GPU: this is the tests' driver";
  return kSuccess;
}

#define FAKE_DRIVER_MAKES(name)                   \
  FAKE_DRIVER_EXPORT Result name(void** handle) { \
    *handle = reinterpret_cast<void*>(16);        \
    return kSuccess;                              \
  }
FAKE_DRIVER_MAKES(cuLibraryLoadData)
FAKE_DRIVER_MAKES(cuLibraryGetKernel)
FAKE_DRIVER_MAKES(cuKernelGetFunction)

FAKE_DRIVER_EXPORT Result cuLibraryUnload(void*) { return kSuccess; }
FAKE_DRIVER_EXPORT Result cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return kSuccess;
}
FAKE_DRIVER_EXPORT Result cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return kSuccess;
}
FAKE_DRIVER_EXPORT Result cuFuncSetAttribute(void*, int, int) { return kSuccess; }
FAKE_DRIVER_EXPORT Result cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }

// cuDNN looks these up, and refuses every plan where one is missing; it calls none.
#define FAKE_DRIVER_REFUSES(name) \
  FAKE_DRIVER_EXPORT Result name() { return kStubLibrary; }
FAKE_DRIVER_REFUSES(cuCtxGetCurrent)
FAKE_DRIVER_REFUSES(cuCtxGetDevice)
FAKE_DRIVER_REFUSES(cuCtxGetLimit)
FAKE_DRIVER_REFUSES(cuCtxPopCurrent)
FAKE_DRIVER_REFUSES(cuCtxPushCurrent)
FAKE_DRIVER_REFUSES(cuDeviceGet)
FAKE_DRIVER_REFUSES(cuDeviceGetAttribute)
FAKE_DRIVER_REFUSES(cuDeviceGetCount)
FAKE_DRIVER_REFUSES(cuDevicePrimaryCtxRelease)
FAKE_DRIVER_REFUSES(cuDevicePrimaryCtxReset)
FAKE_DRIVER_REFUSES(cuDevicePrimaryCtxRetain)
FAKE_DRIVER_REFUSES(cuGetErrorName)
FAKE_DRIVER_REFUSES(cuLaunchCooperativeKernel)
FAKE_DRIVER_REFUSES(cuLaunchKernel)
FAKE_DRIVER_REFUSES(cuLaunchKernelEx)
FAKE_DRIVER_REFUSES(cuLibraryLoadFromFile)
FAKE_DRIVER_REFUSES(cuLinkAddData)
FAKE_DRIVER_REFUSES(cuLinkAddData_v2)
FAKE_DRIVER_REFUSES(cuLinkAddFile_v2)
FAKE_DRIVER_REFUSES(cuLinkComplete)
FAKE_DRIVER_REFUSES(cuLinkCreate)
FAKE_DRIVER_REFUSES(cuLinkCreate_v2)
FAKE_DRIVER_REFUSES(cuLinkDestroy)
FAKE_DRIVER_REFUSES(cuMemcpyDtoH_v2)
FAKE_DRIVER_REFUSES(cuModuleGetFunction)
FAKE_DRIVER_REFUSES(cuModuleGetGlobal_v2)
FAKE_DRIVER_REFUSES(cuModuleLoadData)
FAKE_DRIVER_REFUSES(cuModuleLoadDataEx)
FAKE_DRIVER_REFUSES(cuModuleLoadFatBinary)
FAKE_DRIVER_REFUSES(cuModuleUnload)
FAKE_DRIVER_REFUSES(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAKE_DRIVER_REFUSES(cuOccupancyMaxPotentialClusterSize)
FAKE_DRIVER_REFUSES(cuStreamGetCtx)
FAKE_DRIVER_REFUSES(cuStreamSynchronize)
FAKE_DRIVER_REFUSES(cuTensorMapEncodeIm2col)
FAKE_DRIVER_REFUSES(cuTensorMapEncodeTiled)

}  // extern "C"
