# The flags of the project's own code, and the two functions that make its targets.

# Everything that is compiled here, generated code included.
add_library(cp_build_flags INTERFACE)
# No multiply-add that the compiler fuses: a result must not depend on the machine that the compiler aims at.
target_compile_options(cp_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
target_compile_definitions(cp_build_flags INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
# Drop libraries that an executable links but does not use: cpsim starts without loading NCCL.
target_link_options(cp_build_flags INTERFACE -Wl,--as-needed)
if(CP_SANITIZE)
  list(JOIN CP_SANITIZE "," sanitizers)
  target_compile_options(cp_build_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizers};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(cp_build_flags INTERFACE -fsanitize=${sanitizers})
  # Its programs are large: lld links one in two fifths of the time.
  find_program(CP_LLD_PROGRAM ld.lld)
  mark_as_advanced(CP_LLD_PROGRAM)
  if(CP_LLD_PROGRAM)
    target_link_options(cp_build_flags INTERFACE -fuse-ld=lld)
  endif()
endif()

# Under the sanitizers all code but that which works on tensors (shared/) goes without the checks of each single access, which are a
# quarter of its compile time and more of what is mostly templates: a null pointer and an access out of bounds end in the address
# sanitizer's report anyway. To be linked last, since the last flag counts.
add_library(cp_fewer_checks INTERFACE)
if("undefined" IN_LIST CP_SANITIZE)
  target_compile_options(cp_fewer_checks INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,vptr,object-size,pointer-overflow>)
endif()
# The address sanitizer's checks are calls in it, not code in place: the same reports, a tenth to a seventh less
# to compile.
if("address" IN_LIST CP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cp_fewer_checks INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:--param=asan-instrumentation-with-call-threshold=0>)
endif()

# The front ends: flags and reports, most of it templates of CLI11 that run once, so they are optimised little.
add_library(cp_front_end_flags INTERFACE)
target_compile_options(cp_front_end_flags INTERFACE $<$<CONFIG:Release>:-O1>)
target_link_libraries(cp_front_end_flags INTERFACE cp_fewer_checks)

# GCC collects its garbage for the first time at 1 GiB, which few units reach: 4 % of its time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cp_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()

# What people wrote.
add_library(cp_warnings INTERFACE)
target_compile_options(cp_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>
  $<$<AND:$<BOOL:${CP_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(CP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC reports false positives in instrumented code. What it concludes from the flow of such code is said, and is no error; the release
  # build of CI, where the same is one, has the last word.
  target_compile_options(cp_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-tsan>)
  if(CP_WERROR)
    target_compile_options(cp_warnings INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds;-Wno-error=free-nonheap-object;-Wno-error=restrict;-Wno-error=stringop-overflow;-Wno-error=stringop-overread>)
  endif()
endif()

if(CP_CCACHE)
  find_program(CP_CCACHE_PROGRAM ccache)
  mark_as_advanced(CP_CCACHE_PROGRAM)
  if(CP_CCACHE_PROGRAM)
    # The sloppiness is what ccache asks for to cache units that use a precompiled header. Paths count relative to the checkout, so
    # that another clone of the same sources finds everything in the cache.
    set(launcher ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_IGNOREOPTIONS=--param=ggc* ${CP_CCACHE_PROGRAM})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  endif()
endif()

# A folder may have no source yet; its target exists all the same.
set(CP_EMPTY_SOURCE ${CMAKE_BINARY_DIR}/generated/empty.cc)
if(NOT EXISTS ${CP_EMPTY_SOURCE})
  file(WRITE ${CP_EMPTY_SOURCE} "namespace cp {}\n")
endif()

# cp_add_library(<name> <source>...): static library cp_<name> with the alias cp::<name>.
function(cp_add_library name)
  set(sources ${ARGN})
  if(NOT sources)
    set(sources ${CP_EMPTY_SOURCE})
  endif()
  add_library(cp_${name} STATIC ${sources})
  add_library(cp::${name} ALIAS cp_${name})
  target_include_directories(cp_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(cp_${name} PUBLIC cxx_std_20)  # of who uses it, too
  # What only compiling takes is left out of the installed targets.
  target_link_libraries(cp_${name} PRIVATE $<BUILD_INTERFACE:cp_build_flags> $<BUILD_INTERFACE:cp_warnings>)
endfunction()

# cp_add_executable(<name> <source>...): <build>/bin/<name>.
function(cp_add_executable name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE cp_build_flags cp_warnings)
endfunction()
