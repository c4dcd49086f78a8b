#include "shared/base/error.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace cp {
namespace {

TEST(Errors, EveryKindIsInTheListAndHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kErrorKinds.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kErrorKinds[i]), i);
    names.insert(name(kErrorKinds[i]));
  }
  EXPECT_EQ(names.size(), kErrorKinds.size());
}

TEST(Errors, SayWhatTheyAreAboutAsData) {
  const ErrorFacts facts{
      .culprits = {2}, .operation = "all_gather", .group = "cp[0,1,2]", .sequence = 17, .rank = 0};
  try {
    throw Deadlock("it hangs", facts);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::deadlock);
    EXPECT_EQ(error.facts(), facts);
    EXPECT_STREQ(error.what(), "it hangs");
  }
  EXPECT_EQ(InvalidInput("a mesh of 3 ranks").facts(), ErrorFacts{});
}

TEST(Errors, AdviceStandsBehindTheMessage) {
  const PeerLost error("no space left", {.advice = "make room"});
  EXPECT_STREQ(error.what(), "no space left; make room");
  EXPECT_EQ(error.message(), "no space left");
  EXPECT_EQ(error.facts().advice, "make room");
}

TEST(Errors, ACopyIsTheSameError) {
  const Error copy = Timeout("late", {.group = "cp[0,1]"});
  EXPECT_EQ(copy.kind(), ErrorKind::timeout);
  EXPECT_EQ(copy.facts().group, "cp[0,1]");
  EXPECT_STREQ(copy.what(), "late");
}

TEST(Errors, AKindIsThrownAsItsType) {
  EXPECT_THROW(throw_error(ErrorKind::timeout, "late"), Timeout);
  EXPECT_THROW(throw_error(ErrorKind::cancelled, "stopped"), ErrorOf<ErrorKind::cancelled>);
  for (const ErrorKind kind : kErrorKinds) {
    try {
      throw_error(kind, "message", {.sequence = 3, .advice = "advice"});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_EQ(error.facts().sequence, 3);
      EXPECT_STREQ(error.what(), "message; advice");
    }
  }
}

}  // namespace
}  // namespace cp
