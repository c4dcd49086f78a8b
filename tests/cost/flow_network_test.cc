#include "sim/cost/network/flow_network.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/cost/flow_caps.h"

namespace cp::sim {
namespace {

using testing::kNoCap;
using Path = std::vector<LinkId>;

// Roundings of a handful of operations.
void expect_close(double actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-12 * std::abs(expected));
}

FlowNetwork network(std::vector<double> capacities) { return FlowNetwork(capacities); }

TEST(FlowNetworkTest, OneFlowTakesBytesOverCapacity) {
  FlowNetwork net = network({3.7});
  const FlowId flow = net.start(11.0, Path{0}, 1e9, kNoCap);
  EXPECT_FALSE(net.idle());
  expect_close(net.rate(flow), 3.7);
  expect_close(net.next_end_ns(), 11.0 + 1e9 / 3.7);
  EXPECT_EQ(net.end_next(), flow);
  EXPECT_TRUE(net.idle());
  expect_close(net.now_ns(), 11.0 + 1e9 / 3.7);
  EXPECT_EQ(net.carried(0), 1e9);
}

TEST(FlowNetworkTest, CapsMayChangeOnTheWay) {
  FlowNetwork net = network({10});
  const FlowId a = net.start(0, Path{0}, 100, kNoCap), b = net.start(0, Path{0}, 100, kNoCap);
  net.set_cap(10, a, 2);  // 50 bytes each so far
  expect_close(net.rate(a), 2);
  expect_close(net.rate(b), 8);
  net.set_cap(12, a, kNoCap);  // 46 and 34 left
  expect_close(net.rate(a), 5);
  EXPECT_EQ(net.end_next(), b);
  expect_close(net.now_ns(), 18.8);
  EXPECT_EQ(net.end_next(), a);
  expect_close(net.now_ns(), 20);
}

TEST(FlowNetworkTest, TheCapAndTheNarrowestLinkBound) {
  FlowNetwork net = network({8, 5, 6});
  expect_close(net.rate(net.start(0, Path{0}, 1, 2)), 2);
  expect_close(net.rate(net.start(0, Path{1, 2}, 1, kNoCap)), 5);
  expect_close(net.rate(net.start(0, Path{}, 1, 0.25)), 0.25);
}

TEST(FlowNetworkTest, EqualFlowsShareALinkAndEndTogether) {
  FlowNetwork net = network({7});
  for (int i = 0; i < 9; ++i) net.start(0, Path{0}, 700, kNoCap);
  for (FlowId flow = 0; flow < 9; ++flow) {
    expect_close(net.rate(flow), 7.0 / 9);
    expect_close(net.next_end_ns(), 900);
  }
  for (FlowId flow = 0; flow < 9; ++flow) EXPECT_EQ(net.end_next(), flow);
  expect_close(net.now_ns(), 900);
  EXPECT_EQ(net.carried(0), 6300);
}

TEST(FlowNetworkTest, WhatOneCannotUseGoesToTheOthers) {
  FlowNetwork net = network({12});
  const FlowId slow = net.start(0, Path{0}, 1, 2), a = net.start(0, Path{0}, 1, kNoCap),
               b = net.start(0, Path{0}, 1, 9);
  expect_close(net.rate(slow), 2);
  expect_close(net.rate(a), 5);
  expect_close(net.rate(b), 5);
}

// Flows over both links and over each alone. The long one and a short one halve link 0; what link 1 has
// beyond the long one's half is the other short one's.
TEST(FlowNetworkTest, TwoLinksInARow) {
  FlowNetwork net = network({10, 14});
  const FlowId both = net.start(0, Path{0, 1}, 1, kNoCap), first = net.start(0, Path{0}, 1, kNoCap),
               second = net.start(0, Path{1}, 1, kNoCap);
  expect_close(net.rate(both), 5);
  expect_close(net.rate(first), 5);
  expect_close(net.rate(second), 9);
}

// Links 0, 1, 2 of 6, 10 and 20; a flow over each pair and one more over link 0. Link 0 is full first, at 2
// for each of its three; link 1 has 8 left for one flow; it has that, as link 2 has 20 - 2 - 8 to spare.
TEST(FlowNetworkTest, Triangle) {
  FlowNetwork net = network({6, 10, 20});
  const FlowId f01 = net.start(0, Path{0, 1}, 1, kNoCap), f12 = net.start(0, Path{1, 2}, 1, kNoCap),
               f02 = net.start(0, Path{0, 2}, 1, kNoCap), f0 = net.start(0, Path{0}, 1, kNoCap);
  expect_close(net.rate(f01), 2);
  expect_close(net.rate(f02), 2);
  expect_close(net.rate(f0), 2);
  expect_close(net.rate(f12), 8);
}

// A flow of 100 bytes alone at 10 until 4; shared at 5 until the second one's 30 bytes are over at 10; then
// alone again with 100 - 40 - 30 left.
TEST(FlowNetworkTest, RatesChangeWhenFlowsComeAndGo) {
  FlowNetwork net = network({10});
  const FlowId first = net.start(0, Path{0}, 100, kNoCap), second = net.start(4, Path{0}, 30, kNoCap);
  expect_close(net.next_end_ns(), 10);
  EXPECT_EQ(net.end_next(), second);
  expect_close(net.carried(0), 100);
  expect_close(net.next_end_ns(), 13);
  EXPECT_EQ(net.end_next(), first);
  expect_close(net.carried(0), 130);
}

// The end of the flow on link 0 is felt two links further on.
TEST(FlowNetworkTest, ChangesTravelThroughOtherFlows) {
  FlowNetwork net = network({4, 6, 12});
  const FlowId a = net.start(0, Path{0}, 10, kNoCap), ab = net.start(0, Path{0, 1}, 1000, kNoCap),
               bc = net.start(0, Path{1, 2}, 1000, kNoCap), c = net.start(0, Path{2}, 1000, kNoCap);
  expect_close(net.rate(ab), 2);
  expect_close(net.rate(bc), 4);
  expect_close(net.rate(c), 8);
  EXPECT_EQ(net.end_next(), a);
  expect_close(net.now_ns(), 5);
  expect_close(net.rate(ab), 3);
  expect_close(net.rate(bc), 3);
  expect_close(net.rate(c), 9);
}

TEST(FlowNetworkTest, NumbersAreUsedAgain) {
  FlowNetwork net = network({1, 1});
  EXPECT_EQ(net.start(0, Path{0}, 1, kNoCap), 0);
  EXPECT_EQ(net.start(0, Path{1}, 2, kNoCap), 1);
  EXPECT_EQ(net.end_next(), 0);
  EXPECT_EQ(net.start(net.now_ns(), Path{0}, 5, kNoCap), 0);
  EXPECT_EQ(net.end_next(), 1);
  EXPECT_EQ(net.end_next(), 0);
  expect_close(net.now_ns(), 6);
}

TEST(FlowNetworkTest, RefusesCapacitiesThatAreNone) {
  EXPECT_THROW(network({1, 0}), InvalidInput);
  EXPECT_THROW(network({-1}), InvalidInput);
  EXPECT_THROW(network({kNoCap}), InvalidInput);
}

}  // namespace
}  // namespace cp::sim
