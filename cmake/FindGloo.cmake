# Finds Gloo: Gloo_FOUND, Gloo_VERSION and the target Gloo::gloo.

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
