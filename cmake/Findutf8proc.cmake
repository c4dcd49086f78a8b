# Finds utf8proc: utf8proc_FOUND, utf8proc_VERSION and the target utf8proc::utf8proc.

find_path(utf8proc_INCLUDE_DIR utf8proc.h)
find_library(utf8proc_LIBRARY utf8proc)
mark_as_advanced(utf8proc_INCLUDE_DIR utf8proc_LIBRARY)

if(utf8proc_INCLUDE_DIR)
  file(STRINGS ${utf8proc_INCLUDE_DIR}/utf8proc.h lines REGEX "#define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL " [0-9]+" utf8proc_VERSION "${lines}")
  string(REGEX REPLACE ";? " "." utf8proc_VERSION "${utf8proc_VERSION}")
  string(SUBSTRING "${utf8proc_VERSION}" 1 -1 utf8proc_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(utf8proc REQUIRED_VARS utf8proc_LIBRARY utf8proc_INCLUDE_DIR VERSION_VAR utf8proc_VERSION)

if(utf8proc_FOUND AND NOT TARGET utf8proc::utf8proc)
  add_library(utf8proc::utf8proc UNKNOWN IMPORTED)
  set_target_properties(utf8proc::utf8proc PROPERTIES
    IMPORTED_LOCATION ${utf8proc_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${utf8proc_INCLUDE_DIR})
endif()
