#include "runtime/rendezvous/own_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/errors.h"

namespace cp {
namespace {

using namespace std::chrono_literals;

// Routes between machines: tests/cprun/two_machines_test.cc.
TEST(OwnAddress, TowardsThisMachineIsItsOwn) {
  EXPECT_EQ(runtime::own_address_towards("127.0.0.1", 29'500, 1s), "127.0.0.1");
}

TEST(OwnAddress, SaysWhatCannotBeReached) {
  try {
    runtime::own_address_towards("no.such.host.invalid", 1, 1ms);
    FAIL() << "found it";
  } catch (const runtime::RendezvousError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("this machine cannot reach no.such.host.invalid: "));
  }
}

}  // namespace
}  // namespace cp
