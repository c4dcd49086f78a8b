// That the runtime links, with all that it needs: cprun did not start this process, and it says so.
#include <cstdio>

#include "runtime/job.h"
#include "shared/base/error.h"

int main() {
  try {
    cp::runtime::Job job;
  } catch (const cp::InvalidInput& error) {
    std::printf("no rank: %s\n", error.what());
    return 0;
  }
  return 1;
}
