# Messages lie with what they are messages of; sim/cost/cluster/rates.proto is included, and imported, as "sim/cost/cluster/rates.pb.h".
set(CP_PROTOBUF_DIR ${CMAKE_BINARY_DIR}/generated/protobuf)

# cp_add_protobuf(<name> PROTOS <file>... [LIBS <target>...]): static library cp_<name> with the alias cp::<name>, of code that protoc
# generates from the files. LIBS are the libraries of the files that these import.
function(cp_add_protobuf name)
  cmake_parse_arguments(arg "" "" "PROTOS;LIBS" ${ARGN})
  # A message may be used by another file, so a change to one generates all again; there are few.
  set_property(GLOBAL APPEND PROPERTY CP_PROTOS ${arg_PROTOS})
  get_property(known GLOBAL PROPERTY CP_PROTOS)
  file(MAKE_DIRECTORY ${CP_PROTOBUF_DIR})
  set(generated)
  foreach(proto IN LISTS arg_PROTOS)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${proto})
    string(REGEX REPLACE "[.]proto$" "" stem ${path})
    set(outputs ${CP_PROTOBUF_DIR}/${stem}.pb.cc ${CP_PROTOBUF_DIR}/${stem}.pb.h)
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc --experimental_allow_proto3_optional  # protoc before 3.15 asks for it
              --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${CP_PROTOBUF_DIR} ${path}
      DEPENDS ${known} protobuf::protoc
      COMMENT "Generating ${stem}.pb.h"
      VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  if(NOT generated)
    set(generated ${CP_EMPTY_SOURCE})
  endif()

  # Generated code: without the warnings that are for people's code.
  add_library(cp_${name} STATIC ${generated})
  add_library(cp::${name} ALIAS cp_${name})
  target_include_directories(cp_${name} SYSTEM PUBLIC $<BUILD_INTERFACE:${CP_PROTOBUF_DIR}>)
  target_link_libraries(cp_${name}
    PUBLIC ${arg_LIBS} protobuf::libprotobuf Threads::Threads PRIVATE $<BUILD_INTERFACE:cp_build_flags>)
endfunction()
