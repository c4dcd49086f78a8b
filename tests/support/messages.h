// What errors say, for tests of their words.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace cp::testing {

// The message of the InvalidInput that f() throws; "no error" when it throws none.
template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace cp::testing
