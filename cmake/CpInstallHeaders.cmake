# Installs the public headers and those that they include, under include/cpsim/ by their paths in the repository. It runs when
# something is installed and not before, so that it always sees the headers as they are.
#   CP_SOURCE_DIR   the repository
#   CP_INCLUDE_DIR  where to, below the prefix or absolute
cmake_minimum_required(VERSION 3.22)
include(${CMAKE_CURRENT_LIST_DIR}/CpPublicHeaders.cmake)

set(open ${CP_PUBLIC_HEADERS_core} ${CP_PUBLIC_HEADERS_fabric} ${CP_PUBLIC_HEADERS_planner} ${CP_PUBLIC_HEADERS_runtime})
set(closed)
while(open)
  list(POP_FRONT open header)
  if(header IN_LIST closed)
    continue()
  endif()
  if(NOT EXISTS ${CP_SOURCE_DIR}/${header})
    message(FATAL_ERROR "a public header is, or includes, \"${header}\", which is no file of the repository: a header that is generated "
      "cannot be public; one that has moved has its new name to be written in cmake/CpPublicHeaders.cmake")
  endif()
  list(APPEND closed ${header})
  file(STRINGS ${CP_SOURCE_DIR}/${header} lines REGEX "^#include \"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" included "${line}")
    list(APPEND open ${included})
  endforeach()
endwhile()

if(NOT IS_ABSOLUTE "${CP_INCLUDE_DIR}")
  set(CP_INCLUDE_DIR ${CMAKE_INSTALL_PREFIX}/${CP_INCLUDE_DIR})
endif()
foreach(header IN LISTS closed)
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${CP_SOURCE_DIR}/${header} DESTINATION ${CP_INCLUDE_DIR}/${folder})
endforeach()
