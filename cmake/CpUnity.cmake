# Compiles the sources of each folder of the libraries and of the tests as one: a third of their time from nothing, more after a change of
# one file. So CI builds; that each source stands alone scripts/includes shows each night, and of what a change touches scripts/tidy.
#
# No two sources of a folder may then give different things one name, nor write one thing twice; a reader wants the same.
#
# A unit has at most cp_united_sources of a folder: the compiler's memory stays below 2 GB, and a unit that is built last is not waited for.
#
# CMake's own UNITY_BUILD includes sources by their absolute paths, so that a clone elsewhere would find nothing in the compiler cache.

set(cp_united_sources 12)

# Whether the source is to be compiled with flags of its own.
function(cp_has_flags_of_its_own source target result)
  set(${result} OFF PARENT_SCOPE)
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES)
    get_source_file_property(value ${source} TARGET_DIRECTORY ${target} ${property})
    if(value)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(cp_unite_folders target)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(from ${target} SOURCE_DIR)
  set(alone)
  set(groups)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${from})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
    cp_has_flags_of_its_own(${path} ${target} has_flags)
    # Neither what is generated nor what nvcc compiles.
    if(has_flags OR NOT name MATCHES "^(shared|traces|sim|runtime|cli|tests)/.*[.]cc$")
      list(APPEND alone ${source})
      continue()
    endif()
    get_filename_component(folder ${name} DIRECTORY)
    string(MAKE_C_IDENTIFIER ${folder} group)
    if(from MATCHES "/tests(/|$)" AND DEFINED count_of_${group})
      math(EXPR count_of_${group} "${count_of_${group}} + 1")
    else()
      set(count_of_${group} 0)
    endif()
    math(EXPR part "${count_of_${group}} / ${cp_united_sources}")
    if(part GREATER 0)
      string(APPEND group "_${part}")
    endif()
    get_source_file_property(light ${path} TARGET_DIRECTORY ${target} CP_LIGHT)
    if(light)
      set(light_${group} ON)
    endif()
    list(APPEND groups ${group})
    string(APPEND text_of_${group} "#include \"${name}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  set(united)
  foreach(group IN LISTS groups)
    set(file ${CMAKE_BINARY_DIR}/generated/unity/${target}/${group}.cc)
    file(GENERATE OUTPUT ${file} CONTENT "${text_of_${group}}")
    list(APPEND united ${file})
    if(light_${group})
      set_source_files_properties(${file} DIRECTORY ${from} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
    endif()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone} ${united})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It takes sources that are included for headers, and finds variants uninitialised that it inlines into more functions.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage;-Wno-maybe-uninitialized>)
  endif()
endfunction()

get_property(cp_test_programs GLOBAL PROPERTY CP_TEST_PROGRAMS)
foreach(target cp_shared cp_traces cp_fabric cp_sim cp_runtime_base cp_gpu cp_runtime cp_emulated_runtime cp_cli cp_cprun cp_test_support
    cp_searched ${cp_test_programs})
  cp_unite_folders(${target})
endforeach()
