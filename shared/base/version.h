// The version of cpsim: of its programs, its libraries and its headers. It is written here and nowhere else;
// CMakeLists.txt reads it.
//
// Before 1.0 a minor version may change what a header says, and a patch does not. A program that is to build
// against several asks the preprocessor:
//
//   #if CP_VERSION_NUMBER >= 200  // 0.2.0 and later
#pragma once

#include <string_view>

#define CP_VERSION_MAJOR 0
#define CP_VERSION_MINOR 1
#define CP_VERSION_PATCH 0

// One number that grows with the version: 12,345 of 1.23.45.
#define CP_VERSION_NUMBER (CP_VERSION_MAJOR * 10000 + CP_VERSION_MINOR * 100 + CP_VERSION_PATCH)

// A string literal: "0.1.0". The two steps let the numbers be replaced before they are quoted.
#define CP_VERSION_QUOTED(major, minor, patch) #major "." #minor "." #patch
#define CP_VERSION_TEXT(major, minor, patch) CP_VERSION_QUOTED(major, minor, patch)
#define CP_VERSION CP_VERSION_TEXT(CP_VERSION_MAJOR, CP_VERSION_MINOR, CP_VERSION_PATCH)

namespace cp {

inline constexpr std::string_view kVersion = CP_VERSION;

}  // namespace cp
