# Installs the built libraries into an empty folder and builds a project of somebody else's against them, as ctest does:
#
#   cmake -DBUILD_DIR=build/release -DWORK_DIR=/tmp/consumer -DGENERATOR=Ninja -DCXX=g++ -DVERSION=0.1.0 -P tests/consumer/check_install.cmake
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "this ended with ${result}: ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
# Moved behind the installation, since a package is built for one place and unpacked in another.
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --component development --prefix ${WORK_DIR}/first)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/installed)

# What the installed headers include of the project's is installed.
file(GLOB_RECURSE headers RELATIVE ${WORK_DIR}/installed/include/cpsim ${WORK_DIR}/installed/include/cpsim/*.h)
list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "no header was installed")
endif()
foreach(header IN LISTS headers)
  file(STRINGS ${WORK_DIR}/installed/include/cpsim/${header} lines REGEX "^ *# *include *\"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE ".*\"([^\"]*)\".*" "\\1" included "${line}")
    if(NOT included IN_LIST headers)
      message(FATAL_ERROR "${header} is installed and includes \"${included}\", which is not")
    endif()
  endforeach()
endforeach()
# Nothing else lies where others have theirs.
file(GLOB others RELATIVE ${WORK_DIR}/installed ${WORK_DIR}/installed/include/* ${WORK_DIR}/installed/lib*/*.a)
if(NOT others STREQUAL "include/cpsim")
  message(FATAL_ERROR "what is installed belongs below a folder of the name cpsim alone, and these do not: ${others}")
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${WORK_DIR}/installed -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel 2)
run(${WORK_DIR}/build/consumer)
if(NOT output STREQUAL "cpsim ${VERSION}: right\n")
  message(FATAL_ERROR "the consumer's program was to say that version ${VERSION} is right, and said: ${output}")
endif()
if(EXISTS ${WORK_DIR}/build/rank)
  run(${WORK_DIR}/build/rank)
endif()

# A component that does not exist is refused with those that do.
file(WRITE ${WORK_DIR}/other/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)\nproject(other LANGUAGES CXX)\n"
  "find_package(cpsim REQUIRED COMPONENTS core plannner)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/other -B ${WORK_DIR}/other/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK_DIR}/installed
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(result EQUAL 0 OR NOT output MATCHES "no component \"plannner\"; it has core, fabric, planner")
  message(FATAL_ERROR "find_package() of a component that does not exist was to fail and name those that do; it said: ${output}")
endif()
message(STATUS "${count} headers; consumer: cpsim ${VERSION}: right")
