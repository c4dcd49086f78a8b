#include "shared/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace cp {

void invariant_failed(const char* condition, const char* file, int line, const std::string& context) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, condition, context.c_str());
  std::abort();
}

}  // namespace cp
