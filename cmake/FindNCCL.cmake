# Finds NCCL, beside the CUDA toolkit first: NCCL_FOUND, NCCL_VERSION and the target NCCL::nccl. One that is older than NCCL_MINIMUM is
# not taken, and a warning says so.

# The oldest that scripts/versions builds with (kOldestNccl in runtime/nccl_versions.h).
set(NCCL_MINIMUM 2.21)

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl
  HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_BIN_DIR}/..
  PATH_SUFFIXES lib64 lib)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" NCCL_VERSION "${lines}")
endif()

set(NCCL_IS_NEW_ENOUGH TRUE)
if(NCCL_VERSION VERSION_LESS NCCL_MINIMUM AND NCCL_INCLUDE_DIR)
  set(NCCL_IS_NEW_ENOUGH FALSE)
  message(WARNING "NCCL ${NCCL_VERSION} in ${NCCL_INCLUDE_DIR} is older than ${NCCL_MINIMUM}, the oldest that this builds with, so GPUs "
    "are left out; install a newer one (python3 -m pip install nvidia-nccl-cu12 puts one under nvidia/nccl) and name it by NCCL_ROOT, or "
    "by NCCL_INCLUDE_DIR and NCCL_LIBRARY where the library has no libnccl.so")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR NCCL_IS_NEW_ENOUGH VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
