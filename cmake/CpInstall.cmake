# What is installed; CpPackages.cmake makes packages of it.
#
#   component programs      bin/cpsim, bin/cprun
#   component development   lib/cpsim/*.a, include/cpsim/<path in the repository>, lib/cmake/cpsim: find_package(cpsim COMPONENTS ...)
#
# The libraries are static, and only that is supported: their symbols are hidden, so a shared library that links them keeps them to
# itself. What instruments code (CP_SANITIZE) is not for others to link, and nothing of it is installed.
if(CP_SANITIZE)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(${CMAKE_CURRENT_LIST_DIR}/CpPublicHeaders.cmake)

set(cp_targets_of_core cp_shared)
set(cp_targets_of_traces cp_proto cp_traces)
set(cp_targets_of_fabric cp_fabric)
set(cp_targets_of_planner cp_cluster_proto cp_sim)
set(cp_targets_of_runtime cp_rendezvous_proto cp_runtime_base cp_gpu cp_runtime)
set(CP_BUILT_COMPONENTS core fabric planner)
if(CP_HAVE_GLOO OR CP_HAVE_NCCL)
  list(APPEND CP_BUILT_COMPONENTS runtime)  # a Job needs a device
endif()

set(include_dir ${CMAKE_INSTALL_INCLUDEDIR}/cpsim)
set(library_dir ${CMAKE_INSTALL_LIBDIR}/cpsim)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cpsim)
foreach(component IN ITEMS ${CP_BUILT_COMPONENTS} traces)
  foreach(header IN LISTS CP_PUBLIC_HEADERS_${component})
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${header})
      message(FATAL_ERROR "cmake/CpPublicHeaders.cmake names ${header}, which does not exist; write where it has moved to, and in "
        "docs/embedding.md too, or take it out of both")
    endif()
  endforeach()
  set(targets)
  foreach(target IN LISTS cp_targets_of_${component})
    if(TARGET ${target})
      list(APPEND targets ${target})
    endif()
  endforeach()
  # The last one has the component's name, and needs the others.
  foreach(target IN LISTS targets)
    string(REGEX REPLACE "^cp_" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  list(GET targets -1 target)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${component})
  add_library(cpsim::${component} ALIAS ${target})  # for who builds this with add_subdirectory()
  install(TARGETS ${targets} EXPORT cpsim-${component}
    ARCHIVE DESTINATION ${library_dir} COMPONENT development
    INCLUDES DESTINATION ${include_dir})
  install(EXPORT cpsim-${component} NAMESPACE cpsim:: DESTINATION ${package_dir} COMPONENT development)
endforeach()

install(CODE "set(CP_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")\nset(CP_INCLUDE_DIR \"${include_dir}\")" COMPONENT development)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/CpInstallHeaders.cmake COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/cpsimConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/cpsimConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change headers.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/cpsimConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/cpsimConfig.cmake ${CMAKE_BINARY_DIR}/generated/cpsimConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

foreach(program cpsim cprun)
  if(TARGET ${program})
    # Folders of CUDA's and NCCL's libraries that the system's linker may not know.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/scenarios DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/cpsim/examples COMPONENT programs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libcpsim-dev/examples COMPONENT development
  FILES_MATCHING PATTERN "*.cc" PATTERN scenarios EXCLUDE)
foreach(package "programs;cpsim" "development;libcpsim-dev")
  list(GET package 0 component)
  list(GET package 1 name)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} RENAME copyright COMPONENT ${component})
endforeach()
