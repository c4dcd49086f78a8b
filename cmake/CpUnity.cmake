# Compiles the sources of each folder of the libraries as one: a third of the time from nothing, more after a change of one file. So CI
# builds; what it also builds without (the fuzz and tsan presets) shows that each source stands alone.
#
# No two sources of a folder may then give different things one name, nor write one thing twice; a reader wants the same.
function(cp_unite_folders target)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(from ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${from})
    get_filename_component(folder ${path} DIRECTORY)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    if(folder MATCHES "^(shared|traces|sim|runtime|tests)(/|$)")  # not what is generated
      string(MAKE_C_IDENTIFIER ${folder} group)
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It takes sources that are included for headers, and finds variants uninitialised that it inlines into more functions.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage;-Wno-maybe-uninitialized>)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

foreach(target cp_shared cp_traces cp_fabric cp_sim cp_runtime_base cp_gpu cp_runtime cp_emulated_runtime)
  cp_unite_folders(${target})
endforeach()
