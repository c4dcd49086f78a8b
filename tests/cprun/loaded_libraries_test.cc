// What the programs load when they start: a library that only some work needs is loaded by that work. cuBLAS
// alone takes 90 MiB of each process's own memory and a quarter of a second, and OpenBLAS starts a thread for
// each core.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LoadedLibraries, AreNoneOfThoseThatProductsNeed) {
  for (const char* program : {"cprun", "cpsim"}) {
    const ProgramEnd end =
        run({built(program)}, {"LD_TRACE_LOADED_OBJECTS=1"});  // ld.so lists them, and runs nothing
    EXPECT_THAT(end.out, AllOf(HasSubstr("libprotobuf"), Not(HasSubstr("libcublas")),
                               Not(HasSubstr("libcudnn")), Not(HasSubstr("libopenblas"))))
        << program;
  }
}

}  // namespace
}  // namespace cp::testing
