# Finds RapidCheck with its GoogleTest glue, by its own CMake package or by its files: the target RapidCheck::rapidcheck.

find_package(rapidcheck CONFIG QUIET)
find_path(RapidCheck_INCLUDE_DIR rapidcheck/gtest.h)
find_library(RapidCheck_LIBRARY rapidcheck)
mark_as_advanced(RapidCheck_INCLUDE_DIR RapidCheck_LIBRARY rapidcheck_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RapidCheck REQUIRED_VARS RapidCheck_LIBRARY RapidCheck_INCLUDE_DIR)

if(RapidCheck_FOUND AND NOT TARGET RapidCheck::rapidcheck)
  add_library(RapidCheck::rapidcheck INTERFACE IMPORTED)
  if(TARGET rapidcheck_gtest)
    target_link_libraries(RapidCheck::rapidcheck INTERFACE rapidcheck_gtest)
  else()
    target_link_libraries(RapidCheck::rapidcheck INTERFACE ${RapidCheck_LIBRARY})
    target_include_directories(RapidCheck::rapidcheck SYSTEM INTERFACE ${RapidCheck_INCLUDE_DIR})
  endif()
endif()
