# Finds the headers of cudnn-frontend and of cuDNN: CudnnFrontend_FOUND, CudnnFrontend_VERSION, Cudnn_VERSION and the target
# CudnnFrontend::headers. The library, Cudnn_LIBRARY, is loaded when it is first needed, and building needs none.
# Headers of a cuDNN that is older than CUDNN_MINIMUM are not taken, and a warning says so.
#   CP_CUDNN_FRONTEND_DIR   the folder that has cudnn_frontend.h; else that of an installed Python package nvidia-cudnn-frontend, of
#                           the one that scripts/setup --cuda puts into .deps/, or a system folder
#   CUDNN_ROOT              where cudnn.h and libcudnn.so are; else the CUDA toolkit's folders, and system folders

# The oldest that scripts/versions builds and tests with (CudnnAbility::attention in shared/plan/cudnn_abilities.cc).
set(CUDNN_MINIMUM 9.8)

set(CP_CUDNN_FRONTEND_DIR "" CACHE PATH "Folder with cudnn_frontend.h (empty: look for it)")

set(hints ${PROJECT_SOURCE_DIR}/.deps/cudnn_frontend/include)
if(CP_CUDNN_FRONTEND_DIR)
  set(hints ${CP_CUDNN_FRONTEND_DIR})
elseif(NOT CudnnFrontend_INCLUDE_DIR)
  find_program(CudnnFrontend_PYTHON NAMES python3 python)
  mark_as_advanced(CudnnFrontend_PYTHON)
  if(CudnnFrontend_PYTHON)
    # The wheel installs the headers as <prefix>/include/cudnn_frontend.h or inside of site-packages.
    execute_process(
      COMMAND ${CudnnFrontend_PYTHON} -c "
import importlib.metadata as m
for file in m.files('nvidia-cudnn-frontend') or []:
    if file.name == 'cudnn_frontend.h': print(file.locate().resolve().parent)"
      OUTPUT_VARIABLE python_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND hints ${python_dir})
  endif()
endif()
if(CP_CUDNN_FRONTEND_DIR AND NOT CudnnFrontend_INCLUDE_DIR STREQUAL CP_CUDNN_FRONTEND_DIR)
  unset(CudnnFrontend_INCLUDE_DIR CACHE)
endif()
find_path(CudnnFrontend_INCLUDE_DIR cudnn_frontend.h HINTS ${hints})
find_path(Cudnn_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(Cudnn_LIBRARY cudnn
  HINTS ${CUDNN_ROOT} ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_BIN_DIR}/..
  PATH_SUFFIXES lib64 lib)
mark_as_advanced(CudnnFrontend_INCLUDE_DIR Cudnn_INCLUDE_DIR Cudnn_LIBRARY)

if(CudnnFrontend_INCLUDE_DIR)
  file(STRINGS ${CudnnFrontend_INCLUDE_DIR}/cudnn_frontend_version.h lines REGEX "_(MAJOR|MINOR|PATCH)_VERSION [0-9]")
  string(REGEX REPLACE ".*MAJOR_VERSION ([0-9]+).*MINOR_VERSION ([0-9]+).*PATCH_VERSION ([0-9]+).*" "\\1.\\2.\\3"
    CudnnFrontend_VERSION "${lines}")
endif()
if(Cudnn_INCLUDE_DIR)
  file(STRINGS ${Cudnn_INCLUDE_DIR}/cudnn_version.h lines REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) [0-9]")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCHLEVEL ([0-9]+).*" "\\1.\\2.\\3" Cudnn_VERSION "${lines}")
endif()

set(Cudnn_IS_NEW_ENOUGH TRUE)
if(Cudnn_VERSION VERSION_LESS CUDNN_MINIMUM AND Cudnn_INCLUDE_DIR)
  set(Cudnn_IS_NEW_ENOUGH FALSE)
  message(WARNING "cuDNN ${Cudnn_VERSION} in ${Cudnn_INCLUDE_DIR} is older than ${CUDNN_MINIMUM}, the oldest that this builds with, so "
    "attention on GPUs is left to slower kernels; install a newer one (python3 -m pip install nvidia-cudnn-cu12 puts one under "
    "nvidia/cudnn) and name it by CUDNN_ROOT")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudnnFrontend
  REQUIRED_VARS CudnnFrontend_INCLUDE_DIR Cudnn_INCLUDE_DIR Cudnn_IS_NEW_ENOUGH VERSION_VAR CudnnFrontend_VERSION)

if(CudnnFrontend_FOUND AND NOT TARGET CudnnFrontend::headers)
  add_library(CudnnFrontend::headers INTERFACE IMPORTED)
  set_target_properties(CudnnFrontend::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CudnnFrontend_INCLUDE_DIR};${Cudnn_INCLUDE_DIR}"
    # Its own JSON library stays on: graphs are written down by it.
    INTERFACE_COMPILE_DEFINITIONS "NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()
