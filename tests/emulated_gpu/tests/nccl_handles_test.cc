// The end of a device's communicators, on the emulated NCCL: whenever it comes, nothing is freed twice, in
// use, or never.
#include "runtime/nccl/nccl_handles.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/emulated_gpu/emulated_nccl.h"

namespace cp::runtime {
namespace {

using namespace std::chrono_literals;
using Call = NcclHandles::Call;
using Kind = NcclHandles::Kind;

// A communicator of this rank alone.
ncclComm_t add_communicator(NcclHandles& handles, Kind kind) {
  ncclComm_t* const comm = handles.add(kind);
  EXPECT_TRUE(handles.enter(Call::make));
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(ncclCommInitRank(comm, 1, id, 0), ncclSuccess);
  handles.leave();
  return *comm;
}

TEST(NcclHandles, DestroyAndAbortLeaveNothing) {
  for (const bool destroy : {true, false}) {
    const std::size_t before = emulated::communicator_count();
    NcclHandles handles(0);
    for (const Kind kind : {Kind::parent, Kind::child, Kind::child}) add_communicator(handles, kind);
    handles.add(Kind::child);  // that NCCL never wrote
    EXPECT_TRUE(destroy ? handles.destroy() : handles.abort());
    EXPECT_FALSE(handles.abort());
    EXPECT_TRUE(handles.await_end(10s));
    EXPECT_FALSE(handles.enter());
    EXPECT_EQ(emulated::communicator_count(), before);
  }
}

// NCCL's destroy of such a one returns in the midst of the group, which then never ends.
TEST(NcclHandles, DestroyEndsThoseThatHaveFailedToo) {
  const std::size_t before = emulated::communicator_count();
  NcclHandles handles(0);
  add_communicator(handles, Kind::parent);
  emulated::break_communicator(add_communicator(handles, Kind::child));
  add_communicator(handles, Kind::child);
  EXPECT_TRUE(handles.destroy());
  EXPECT_TRUE(handles.await_end(10s));
  EXPECT_EQ(emulated::communicator_count(), before);
}

TEST(NcclHandles, NothingIsFreedWhileTheRankIsInside) {
  const std::size_t before = emulated::communicator_count();
  NcclHandles handles(0);
  add_communicator(handles, Kind::parent);
  ASSERT_TRUE(handles.enter());
  handles.abort();
  EXPECT_FALSE(handles.await_end(200ms));
  EXPECT_EQ(emulated::communicator_count(), before + 1);
  handles.leave();
  EXPECT_TRUE(handles.await_end(10s));
  EXPECT_EQ(emulated::communicator_count(), before);
}

TEST(NcclHandles, WhatIsBeingMadeIsEndedToo) {
  const std::size_t before = emulated::communicator_count();
  NcclHandles handles(0);
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t* const comm = handles.add(Kind::parent);
  ASSERT_TRUE(handles.enter(Call::make));
  handles.abort();
  std::this_thread::sleep_for(200ms);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  EXPECT_EQ(ncclCommInitRankConfig(comm, 2, id, 0, &config), ncclInProgress);  // nobody else comes
  handles.leave();
  EXPECT_TRUE(handles.await_end(10s));
  EXPECT_EQ(emulated::communicator_count(), before);
}

TEST(NcclHandles, PlacesMayBeAddedMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    NcclHandles handles(0);
    add_communicator(handles, Kind::parent);
    handles.abort();
    for (int i = 0; i < 2'000; ++i) handles.add(Kind::child);
    EXPECT_TRUE(handles.await_end(10s));
  }
}

// Whoever meets an error first waits for the end that another thread is about to begin.
TEST(NcclHandles, AwaitsTheBeginOfTheEnd) {
  NcclHandles handles(0);
  add_communicator(handles, Kind::parent);
  const std::jthread other([&] {
    std::this_thread::sleep_for(100ms);
    handles.abort();
  });
  EXPECT_TRUE(handles.await_end(10s));
}

}  // namespace
}  // namespace cp::runtime
