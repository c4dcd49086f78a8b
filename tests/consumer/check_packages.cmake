# Packs a built tree and looks at what the packages hold, as ctest does:
#
#   cmake -DBUILD_DIR=build/release -DWORK_DIR=/tmp/packages "-DGENERATORS=TGZ;DEB" "-DPROGRAMS=cpsim;cprun" \
#     -P tests/consumer/check_packages.cmake
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "this ended with ${result}: ${command}\n${output}${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Sets `package` to the one file that matches.
function(find_package_file pattern)
  file(GLOB found ${WORK_DIR}/${pattern})
  list(LENGTH found count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "cpack was to make one ${pattern}, and made ${count}: ${found}")
  endif()
  set(package ${found} PARENT_SCOPE)
endfunction()

# `output` has a line that ends with each of the texts.
function(expect)
  foreach(text IN LISTS ARGN)
    string(FIND "${output}\n" "${text}\n" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${package} has no ${text}:\n${output}")
    endif()
  endforeach()
endfunction()

list(TRANSFORM PROGRAMS PREPEND /bin/)
set(development /include/cpsim/shared/plan/device.h /include/cpsim/shared/base/version.h /lib/cpsim/libcp_shared.a
  /lib/cpsim/libcp_sim.a /lib/cmake/cpsim/cpsimConfig.cmake)

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
get_filename_component(programs_of_cmake ${CMAKE_COMMAND} DIRECTORY)
foreach(generator IN LISTS GENERATORS)
  run(${programs_of_cmake}/cpack --config ${BUILD_DIR}/CPackConfig.cmake -G ${generator} -B ${WORK_DIR})
endforeach()

find_package_file(cpsim-*.tar.gz)
run(${CMAKE_COMMAND} -E tar tf ${package})
expect(${PROGRAMS} ${development})

if("DEB" IN_LIST GENERATORS)
  find_package_file(cpsim_*.deb)
  run(dpkg-deb --contents ${package})
  expect(${PROGRAMS})
  if(output MATCHES "include/cpsim/")
    message(FATAL_ERROR "${package} is for those who run the programs and has headers:\n${output}")
  endif()
  # What dpkg-shlibdeps found, and what it cannot see.
  run(dpkg-deb --field ${package} Depends)
  if(NOT output MATCHES "libc6 .*" OR NOT output MATCHES "libopenblas0")
    message(FATAL_ERROR "${package} depends on the C library and on OpenBLAS, and says: ${output}")
  endif()
  find_package_file(libcpsim-dev_*.deb)
  run(dpkg-deb --contents ${package})
  expect(${development})
endif()
