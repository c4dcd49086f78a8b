# Precompiles headers of others for the libraries and the front ends. To parse the standard library is four tenths of what their units
# take, and fmt and json are more.
#
# A precompiled header comes before a unit's own includes and hides that one is missing. scripts/includes builds without: the proof that
# each file includes what it uses.
set(cp_std_headers <algorithm> <array> <atomic> <cerrno> <chrono> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory>
  <mutex> <numeric> <optional> <set> <span> <string> <string_view> <tuple> <utility> <variant> <vector>)

# The first target has the header made, and all have the same flags.
function(cp_precompile headers)
  set(first "")
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      continue()
    endif()
    if(first)
      target_precompile_headers(${target} REUSE_FROM ${first})
    else()
      set(first ${target})
      target_precompile_headers(${target} PRIVATE ${${headers}})
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
    endif()
  endforeach()
endfunction()

cp_precompile(cp_std_headers cp_shared cp_traces cp_fabric cp_sim cp_runtime_base cp_gpu cp_runtime cp_searched)
cp_precompile(cp_std_headers cp_emulated_runtime)  # with flags of its own
set(cp_front_end_headers ${cp_std_headers} <fmt/format.h> <nlohmann/json.hpp>)
cp_precompile(cp_front_end_headers cp_cli cpsim cp_cprun)
