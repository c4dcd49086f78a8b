#include "runtime/backend.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/support/messages.h"

namespace cp::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Backends, EachIsThereOrSaysWhyNot) {
  std::set<std::string> names;
  for (const Backend& backend : backends()) {
    EXPECT_TRUE(names.insert(backend.name).second) << backend.name;
    EXPECT_EQ(&find_backend(backend.name), &backend);
    EXPECT_EQ(backend.make != nullptr, backend.why_not.empty()) << backend.name;
    EXPECT_EQ(backend.rank_gpu != nullptr, backend.on_gpus && backend.why_not.empty()) << backend.name;
    if (backend.why_not.empty()) {
      EXPECT_EQ(&require_backend(backend.name), &backend);
      EXPECT_TRUE(library_versions(backend.name).contains(backend.name));
    } else {
      EXPECT_EQ(testing::message_of([&] { require_backend(backend.name); }), backend.why_not);
      EXPECT_THAT(backend.why_not, AllOf(HasSubstr("this build has no "), HasSubstr("use --backend ")));
      EXPECT_THAT(library_versions(backend.name), IsEmpty());
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"gloo", "nccl"}));
}

TEST(Backends, AreThoseThatTheLibrariesWereFoundFor) {
#ifdef CP_HAVE_GLOO
  EXPECT_THAT(find_backend("gloo").why_not, IsEmpty());
#else
  EXPECT_THAT(find_backend("gloo").why_not, HasSubstr("no Gloo"));
#endif
#ifdef CP_HAVE_NCCL
  EXPECT_THAT(find_backend("nccl").why_not, IsEmpty());
#else
  EXPECT_THAT(find_backend("nccl").why_not, HasSubstr("no CUDA and NCCL"));
#endif
}

TEST(Backends, AnUnknownNameIsAnsweredWithThoseThatThereAre) {
  EXPECT_EQ(testing::message_of([] { find_backend("mpi"); }), "'mpi' is not a backend; use gloo or nccl");
  EXPECT_THAT(testing::message_of([] { require_backend(""); }), HasSubstr("'' is not a backend"));
}

}  // namespace
}  // namespace cp::runtime
