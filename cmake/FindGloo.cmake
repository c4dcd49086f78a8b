# Finds Gloo: Gloo_FOUND, Gloo_VERSION and the target Gloo::gloo.
#
# Of a Gloo that was found, Gloo_HAS_CONNECTED_PAIRS says whether pairs of its TCP transport can be made of connections that prove
# themselves (runtime/gloo/sealed_context.cc), which takes its protected members; those differ between versions that have one number.
# Sources that include the transport's headers need Gloo_MISSING_INCLUDE_DIR, for packages without all of them.

find_path(Gloo_INCLUDE_DIR gloo/context.h)
find_library(Gloo_LIBRARY gloo)
mark_as_advanced(Gloo_INCLUDE_DIR Gloo_LIBRARY)

if(Gloo_INCLUDE_DIR AND EXISTS ${Gloo_INCLUDE_DIR}/gloo/config.h)
  file(STRINGS ${Gloo_INCLUDE_DIR}/gloo/config.h lines REGEX "#define GLOO_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" Gloo_VERSION "${lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Gloo REQUIRED_VARS Gloo_LIBRARY Gloo_INCLUDE_DIR VERSION_VAR Gloo_VERSION)

if(Gloo_FOUND AND NOT TARGET Gloo::gloo)
  add_library(Gloo::gloo UNKNOWN IMPORTED)
  set_target_properties(Gloo::gloo PROPERTIES
    IMPORTED_LOCATION ${Gloo_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Gloo_INCLUDE_DIR})
endif()

if(Gloo_FOUND)
  set(Gloo_MISSING_INCLUDE_DIR)
  if(NOT EXISTS ${Gloo_INCLUDE_DIR}/gloo/common/memory.h)
    set(Gloo_MISSING_INCLUDE_DIR ${CMAKE_CURRENT_LIST_DIR}/gloo/missing)
  endif()
  try_compile(Gloo_HAS_CONNECTED_PAIRS ${CMAKE_BINARY_DIR}/CMakeFiles/gloo_probe ${CMAKE_CURRENT_LIST_DIR}/gloo/probe.cc
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${Gloo_INCLUDE_DIR};${Gloo_MISSING_INCLUDE_DIR}"
    LINK_LIBRARIES ${Gloo_LIBRARY} Threads::Threads
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    OUTPUT_VARIABLE Gloo_PROBE_OUTPUT)
endif()
