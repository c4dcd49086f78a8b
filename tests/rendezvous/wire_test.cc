// Errors on the wire of the rendezvous.
#include "runtime/rendezvous/wire.h"

#include <set>

#include <gtest/gtest.h>

namespace cp::runtime {
namespace {

TEST(Wire, EveryKindOfErrorTravels) {
  std::set<int> numbers;
  for (const ErrorKind kind : kErrorKinds) {
    const proto::ErrorKind number = to_wire(kind);
    EXPECT_NE(number, proto::NO_ERROR) << name(kind);
    EXPECT_TRUE(numbers.insert(number).second) << name(kind);
    // Not by chance.
    const ErrorKind otherwise = kind == ErrorKind::peer_lost ? ErrorKind::check_failed : ErrorKind::peer_lost;
    EXPECT_EQ(from_wire(number, otherwise), kind);
  }
}

TEST(Wire, WhatIsNoKindIsTakenForAnother) {
  EXPECT_EQ(from_wire(proto::NO_ERROR, ErrorKind::rendezvous), ErrorKind::rendezvous);
  EXPECT_EQ(from_wire(static_cast<proto::ErrorKind>(1000), ErrorKind::timeout), ErrorKind::timeout);
}

TEST(Wire, AFailureArrivesWhole) {
  const Failure failure{.kind = ErrorKind::deadlock,
                        .rank = 2,
                        .host = "b",
                        .pid = 4711,
                        .message = "deadlock",
                        .progress = {"cp[0,1,2]", 17, "all_gather", {1, 2}, 40},
                        .progress_age = std::chrono::milliseconds(2100)};
  Message::Failure message;
  to_wire(failure, message);
  const Failure arrived = from_wire(message);
  EXPECT_EQ(arrived.kind, failure.kind);
  EXPECT_EQ(to_string(arrived), to_string(failure));
  EXPECT_EQ(facts_of(arrived),
            (ErrorFacts{.culprits = {2}, .operation = "all_gather", .group = "cp[0,1,2]", .sequence = 17}));
}

TEST(Wire, AFailureOfNobodyHasNoCulprits) {
  EXPECT_EQ(
      facts_of(Failure{
          .kind = ErrorKind::peer_lost, .host = "", .message = "the rendezvous is gone", .progress = {}}),
      ErrorFacts{});
}

}  // namespace
}  // namespace cp::runtime
