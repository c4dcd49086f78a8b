// What errors say, for tests of their words.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace cp::testing {

// The message of the E that f() throws; "no error" when it throws none.
template <class E = InvalidInput, class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace cp::testing
