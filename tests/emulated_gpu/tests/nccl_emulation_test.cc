#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::emulated {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of the rank's GPU, filled with a value.
class Memory {
 public:
  explicit Memory(const std::vector<float>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * 4), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * 4, cudaMemcpyHostToDevice), cudaSuccess);
  }
  Memory(std::size_t size, float value) : Memory(std::vector<float>(size, value)) {}
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  float* at(std::size_t index = 0) const { return static_cast<float*>(data_) + index; }
  std::vector<float> values() const {
    std::vector<float> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

struct Rank {
  int rank = 0, size = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  cudaStream_t new_stream() const {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
    return made;
  }
  void finish() const { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }
  // What the communicator ends with, when it does.
  ncclResult_t await_error() const {
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess || state == ncclInProgress) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      std::this_thread::sleep_for(1ms);
    }
    return state;
  }
};

void run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

ncclUniqueId new_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

// Ranks are threads, each with a GPU of its own; `body` aborts or destroys the communicator, or leaves it to
// this.
void with_communicator(int size, const std::function<void(Rank&)>& body) {
  const ncclUniqueId id = new_id();
  run_ranks(size, [&](int number) {
    ASSERT_EQ(cudaSetDevice(number), cudaSuccess);
    Rank rank{number, size, nullptr, nullptr};
    ASSERT_EQ(ncclCommInitRank(&rank.comm, size, id, number), ncclSuccess);
    rank.stream = rank.new_stream();
    body(rank);
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
  });
}

// Both send to each other, so that what follows need not connect them.
void connect_two(const Rank& rank) {
  const Memory in(1, 0), out(1, 0);
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclSend(in.at(), 1, ncclFloat32, 1 - rank.rank, rank.comm, rank.stream), ncclSuccess);
  EXPECT_EQ(ncclRecv(out.at(), 1, ncclFloat32, 1 - rank.rank, rank.comm, rank.stream), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  rank.finish();
}
// The same of all ranks' first collective.
void connect_all(const Rank& rank, ncclComm_t comm) {
  const Memory data(1, 0);
  EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, comm, rank.stream), ncclSuccess);
  rank.finish();
}

float value_of(int rank) { return static_cast<float>(rank + 1); }

TEST(NcclEmulation, AllGatherPutsEachRanksPartInItsPlace) {
  with_communicator(3, [](const Rank& rank) {
    const Memory in(2, value_of(rank.rank)), out(6, 0);
    EXPECT_EQ(ncclAllGather(in.at(), out.at(), 2, ncclFloat32, rank.comm, rank.stream), ncclSuccess);
    rank.finish();
    EXPECT_THAT(out.values(), ElementsAre(1, 1, 2, 2, 3, 3));
  });
}

TEST(NcclEmulation, AllGatherInPlace) {
  with_communicator(2, [](const Rank& rank) {
    const Memory all(2, value_of(rank.rank));
    const auto own = static_cast<std::size_t>(rank.rank);
    EXPECT_EQ(ncclAllGather(all.at(own), all.at(), 1, ncclFloat32, rank.comm, rank.stream), ncclSuccess);
    rank.finish();
    EXPECT_THAT(all.values(), ElementsAre(1, 2));
  });
}

TEST(NcclEmulation, ReducesInPlaceAndOutOfPlace) {
  with_communicator(3, [](const Rank& rank) {
    const Memory in(3, value_of(rank.rank)), sum(3, 0), part(1, 0);
    EXPECT_EQ(ncclAllReduce(in.at(), sum.at(), 3, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(in.at(), part.at(), 1, ncclFloat32, ncclMax, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclAllReduce(in.at(), in.at(), 3, ncclFloat32, ncclAvg, rank.comm, rank.stream), ncclSuccess);
    rank.finish();
    EXPECT_THAT(sum.values(), Each(6));
    EXPECT_THAT(part.values(), Each(3));
    EXPECT_THAT(in.values(), Each(2));
  });
}

TEST(NcclEmulation, BroadcastsFromItsRoot) {
  with_communicator(3, [](const Rank& rank) {
    const Memory in(2, value_of(rank.rank)), out(2, 0);
    EXPECT_EQ(ncclBroadcast(in.at(), out.at(), 2, ncclFloat32, 1, rank.comm, rank.stream), ncclSuccess);
    rank.finish();
    EXPECT_THAT(out.values(), Each(2));
  });
}

// Where NCCL connects at run time its first call waits for the peers on the host, and later ones do not.
TEST(NcclEmulation, TheFirstCollectiveBlocksItsHostUntilAllRanksCallIt) {
  std::atomic<bool> called{false};
  std::atomic<int> returned{0};  // of the second one
  with_communicator(3, [&](const Rank& rank) {
    const Memory data(1, 1);
    const auto sum = [&] {
      EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream),
                ncclSuccess);
    };
    if (rank.rank == 2) {
      std::this_thread::sleep_for(100ms);
      called = true;
    }
    sum();
    EXPECT_TRUE(called);
    while (rank.rank == 2 && returned < 2) std::this_thread::sleep_for(1ms);
    sum();
    ++returned;
    rank.finish();
    EXPECT_THAT(data.values(), Each(9));
  });
}

TEST(NcclEmulation, TheFirstSendBlocksItsHostUntilItIsReceived) {
  std::atomic<bool> called{false};
  with_communicator(3, [&](const Rank& rank) {
    const Memory data(1, value_of(rank.rank));
    if (rank.rank == 0) {
      EXPECT_EQ(ncclSend(data.at(), 1, ncclFloat32, 1, rank.comm, rank.stream), ncclSuccess);
      EXPECT_TRUE(called);
    } else if (rank.rank == 1) {
      std::this_thread::sleep_for(100ms);
      called = true;
      EXPECT_EQ(ncclRecv(data.at(), 1, ncclFloat32, 0, rank.comm, rank.stream), ncclSuccess);
    }
    rank.finish();
    EXPECT_THAT(data.values(), ElementsAre(rank.rank == 2 ? 3 : 1));
  });
}

// In a group all communicators connect at once, so that their order in it does not matter.
TEST(NcclEmulation, CommunicatorsOfOneGroupConnectInAnyOrder) {
  with_communicator(2, [](Rank& rank) {
    ncclComm_t other = nullptr;
    ASSERT_EQ(ncclCommSplit(rank.comm, 0, rank.rank, &other, nullptr), ncclSuccess);
    const Memory data(2, 1);
    const auto sum = [&](std::size_t at, ncclComm_t comm) {
      EXPECT_EQ(ncclAllReduce(data.at(at), data.at(at), 1, ncclFloat32, ncclSum, comm, rank.stream),
                ncclSuccess);
    };
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    if (rank.rank == 0) sum(0, rank.comm), sum(1, other);
    if (rank.rank == 1) sum(1, other), sum(0, rank.comm);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    // On the GPU it does matter, so the work ends by an abort.
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (const ncclComm_t comm : {rank.comm, other}) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    rank.comm = nullptr;
    rank.finish();
  });
}

// Bootstrap hears of an abort on this side, and of nothing else.
TEST(NcclEmulation, AFirstCollectiveThatNobodyJoinsEndsByAnAbort) {
  with_communicator(2, [](Rank& rank) {
    if (rank.rank == 0) {
      const Memory data(1, 1);
      std::atomic<bool> aborted{false}, returned{false};
      std::thread aborter([&] {
        cudaSetDevice(0);
        std::this_thread::sleep_for(200ms);  // the peer may have gone by then
        aborted = true;
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
        while (!returned) std::this_thread::sleep_for(1ms);  // nothing is freed in use
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
      });
      EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream),
                ncclInternalError);
      EXPECT_TRUE(aborted);
      returned = true;
      aborter.join();
      rank.comm = nullptr;
    }
  });
}

TEST(NcclEmulation, SendsAndReceivesOfAGroupProgressTogether) {
  constexpr std::size_t kCount = 1 << 18;  // more than a connection holds
  with_communicator(4, [](const Rank& rank) {
    const Memory in(4 * kCount, value_of(rank.rank)), out(4 * kCount, 0);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < 4; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * kCount;
      EXPECT_EQ(ncclSend(in.at(at), kCount, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(out.at(at), kCount, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    rank.finish();
    const std::vector<float> values = out.values();
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], value_of(static_cast<int>(i / kCount))) << i;
  });
}

TEST(NcclEmulation, ALoneSendBlocksItsStreamUntilItIsReceived) {
  with_communicator(2, [](const Rank& rank) {
    connect_two(rank);
    const Memory data(1, value_of(rank.rank));
    if (rank.rank == 0) {
      EXPECT_EQ(ncclSend(data.at(), 1, ncclFloat32, 1, rank.comm, rank.stream), ncclSuccess);
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    } else {
      std::this_thread::sleep_for(150ms);
      EXPECT_EQ(ncclRecv(data.at(), 1, ncclFloat32, 0, rank.comm, rank.stream), ncclSuccess);
    }
    rank.finish();
    EXPECT_THAT(data.values(), ElementsAre(1));  // of rank 0
  });
}

TEST(NcclEmulation, TwoLoneSendsThatMeetBlockUntilAborted) {
  with_communicator(2, [](Rank& rank) {
    connect_two(rank);
    const Memory data(1, 0);
    const int peer = 1 - rank.rank;
    EXPECT_EQ(ncclSend(data.at(), 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(ncclRecv(data.at(), 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    rank.finish();
  });
}

TEST(NcclEmulation, AnAbortOfAnotherThreadEndsWhatWaitsAndThePeersSeeIt) {
  with_communicator(3, [](Rank& rank) {
    connect_all(rank, rank.comm);
    const Memory data(1, 1);
    if (rank.rank != 2) {
      EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream),
                ncclSuccess);
    }
    if (rank.rank == 1) {
      std::thread([&] { EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess); }).join();
    } else if (rank.rank == 0) {
      EXPECT_EQ(rank.await_error(), ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(rank.comm), HasSubstr("lost"));
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);  // until it is aborted here too
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    } else {
      std::this_thread::sleep_for(100ms);
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    }
    rank.comm = nullptr;
    rank.finish();
  });
}

// What the ranks of two do at once, which does not fit; what the first of them sees.
std::string mismatch(const std::function<void(const Rank&, float*)>& body) {
  std::array<std::string, 2> seen;
  with_communicator(2, [&](Rank& rank) {
    const Memory data(8, 0);
    body(rank, data.at());
    const ncclResult_t error = rank.await_error();
    EXPECT_TRUE(error == ncclInvalidUsage || error == ncclRemoteError) << error;
    if (error == ncclInvalidUsage) seen[static_cast<std::size_t>(rank.rank)] = ncclGetLastError(rank.comm);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    rank.finish();
  });
  return seen[0] + seen[1];
}

TEST(NcclEmulation, MismatchesAreErrors) {
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                const std::size_t count = rank.rank == 0 ? 2 : 4;
                ncclAllReduce(data, data, count, ncclFloat32, ncclSum, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                const ncclDataType_t type = rank.rank == 0 ? ncclFloat32 : ncclInt32;
                ncclAllReduce(data, data, 2, type, ncclSum, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                const ncclRedOp_t op = rank.rank == 0 ? ncclSum : ncclMax;
                ncclAllReduce(data, data, 2, ncclFloat32, op, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                ncclBroadcast(data, data, 2, ncclFloat32, rank.rank, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                if (rank.rank == 0)
                  ncclBroadcast(data, data, 2, ncclFloat32, 0, rank.comm, rank.stream);
                else
                  ncclAllReduce(data, data, 2, ncclFloat32, ncclSum, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
  EXPECT_THAT(mismatch([](const Rank& rank, float* data) {
                if (rank.rank == 0)
                  ncclSend(data, 2, ncclFloat32, 1, rank.comm, rank.stream);
                else
                  ncclRecv(data, 3, ncclFloat32, 0, rank.comm, rank.stream);
              }),
              HasSubstr("mismatch"));
}

TEST(NcclEmulation, SplitsByColorInOrderOfTheKey) {
  with_communicator(4, [](const Rank& rank) {
    ncclComm_t child = nullptr;
    const int color = rank.rank == 3 ? NCCL_SPLIT_NOCOLOR : 7;
    ASSERT_EQ(ncclCommSplit(rank.comm, color, -rank.rank, &child, nullptr), ncclSuccess);
    if (rank.rank == 3) {
      EXPECT_EQ(child, nullptr);
      return;
    }
    int own = -1, size = -1, device = -1;
    ASSERT_EQ(ncclCommUserRank(child, &own), ncclSuccess);
    ASSERT_EQ(ncclCommCount(child, &size), ncclSuccess);
    ASSERT_EQ(ncclCommCuDevice(child, &device), ncclSuccess);
    EXPECT_EQ(own, 2 - rank.rank);
    EXPECT_EQ(size, 3);
    EXPECT_EQ(device, rank.rank);
    const Memory in(1, value_of(rank.rank)), out(3, 0);
    EXPECT_EQ(ncclAllGather(in.at(), out.at(), 1, ncclFloat32, child, rank.stream), ncclSuccess);
    rank.finish();
    EXPECT_THAT(out.values(), ElementsAre(3, 2, 1));
    EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  });
}

TEST(NcclEmulation, WhatDoesNotBlockIsInProgressAndEndsOnItsOwn) {
  const ncclUniqueId id = new_id();
  run_ranks(2, [&](int rank) {
    cudaSetDevice(rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    if (rank == 1) std::this_thread::sleep_for(50ms);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    ASSERT_NE(comm, nullptr);
    const auto await = [&] {
      ncclResult_t state = ncclInProgress;
      int polls = 0;
      for (; state == ncclInProgress; ++polls) {
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        std::this_thread::sleep_for(1ms);
      }
      EXPECT_EQ(state, ncclSuccess);
      return polls;
    };
    const int polls = await();
    EXPECT_TRUE(polls > 1 || rank == 1);
    const Memory data(1, value_of(rank));
    EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, comm, nullptr), ncclInProgress);
    await();  // only now it is on the stream
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_THAT(data.values(), ElementsAre(3));
    ncclComm_t child = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclInProgress);
    await();
    EXPECT_NE(child, nullptr);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
    await();
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  });
}

TEST(NcclEmulation, AnInitThatNobodyJoinsIsAborted) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, new_id(), 0, &config), ncclInProgress);
  const Memory data(1, 0);
  EXPECT_EQ(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);  // freed
}

TEST(NcclEmulation, TwoRanksOfOneHostCannotShareAGpu) {
  for (const bool own_host : {false, true}) {
    const ncclUniqueId id = new_id();
    run_ranks(2, [&](int rank) {
      if (own_host) set_host_id("host " + std::to_string(rank));
      ncclComm_t comm = nullptr;
      const ncclResult_t result = ncclCommInitRank(&comm, 2, id, rank);
      EXPECT_EQ(result, own_host ? ncclSuccess : ncclInvalidUsage);
      const std::string said = ncclGetLastError(nullptr);
      EXPECT_TRUE(own_host ||
                  said.find(nccl_version() < 23003 ? "Duplicate GPU detected" : "Multiple Ranks are using") !=
                      std::string::npos)
          << said;
      EXPECT_EQ(own_host ? ncclCommDestroy(comm) : ncclCommAbort(comm), ncclSuccess);
    });
  }
}

TEST(NcclEmulation, RefusesWhatIsNotMemoryOfTheGpu) {
  with_communicator(1, [](const Rank& rank) {
    std::vector<float> host(4);
    const Memory data(4, 0);
    const auto all_reduce = [&](const float* in, float* out, std::size_t count) {
      return ncclAllReduce(in, out, count, ncclFloat32, ncclSum, rank.comm, rank.stream);
    };
    EXPECT_EQ(all_reduce(host.data(), data.at(), 4), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data.at(), data.at(), 5), ncclInvalidArgument);   // beyond the end
    EXPECT_EQ(all_reduce(data.at(), data.at(1), 2), ncclInvalidArgument);  // overlap that is not in place
    EXPECT_EQ(all_reduce(data.at(), data.at(), 4), ncclSuccess);
    void* handle = nullptr;
    EXPECT_EQ(ncclCommRegister(rank.comm, data.at(), 16, &handle), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclInvalidArgument);
    rank.finish();
  });
}

// Two communicators of the same ranks, each on a stream of its own, whose work comes to the GPU in another
// order on rank 1.
bool deadlocks(bool same_order) {
  std::atomic<bool> stuck{false};
  with_communicator(2, [&](Rank& rank) {
    ncclComm_t other = nullptr;
    ASSERT_EQ(ncclCommSplit(rank.comm, 0, rank.rank, &other, nullptr), ncclSuccess);
    connect_all(rank, rank.comm);
    connect_all(rank, other);
    const cudaStream_t second = rank.new_stream();
    const Memory a(1, 1), b(1, 1);
    const auto first_comm = [&] {
      ncclAllReduce(a.at(), a.at(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream);
    };
    const auto second_comm = [&] { ncclAllReduce(b.at(), b.at(), 1, ncclFloat32, ncclSum, other, second); };
    const bool swapped = !same_order && rank.rank == 1;
    swapped ? second_comm() : first_comm();
    std::this_thread::sleep_for(100ms);
    swapped ? first_comm() : second_comm();
    std::this_thread::sleep_for(200ms);
    if (cudaStreamQuery(rank.stream) != cudaSuccess || cudaStreamQuery(second) != cudaSuccess) stuck = true;
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);  // an abort waits for the GPU, where the other's work runs
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(other), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    rank.comm = nullptr;
    rank.finish();
    EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  });
  return stuck;
}

TEST(NcclEmulation, CommunicatorsInAnotherOrderComeToADeadlock) {
  EXPECT_FALSE(deadlocks(true));
  EXPECT_TRUE(deadlocks(false));
}

// Returns when both processes have done their part; exits with what went wrong first.
void reduce_between_processes() {
  const auto require = [](bool holds, int code) {
    if (!holds) _exit(code);
  };
  // The child comes before any GPU is used here: a fork has none.
  std::array<int, 2> pipe = {};
  require(::pipe(pipe.data()) == 0, 1);
  const pid_t child = fork();
  const int rank = child == 0 ? 1 : 0;
  ncclUniqueId id;
  if (child == 0) {
    require(read(pipe[0], &id, sizeof id) == sizeof id, 2);
  } else {
    require(ncclGetUniqueId(&id) == ncclSuccess, 3);
    require(write(pipe[1], &id, sizeof id) == sizeof id, 4);
  }
  set_host_id("process " + std::to_string(rank));
  ncclComm_t comm = nullptr;
  require(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess, 5);
  void* data = nullptr;
  const int one = 1;
  int sum = 0;
  const auto all_reduce = [&] { return ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, nullptr); };
  require(cudaMalloc(&data, 4) == cudaSuccess, 6);
  require(cudaMemcpy(data, &one, 4, cudaMemcpyHostToDevice) == cudaSuccess, 7);
  require(all_reduce() == ncclSuccess, 8);
  require(cudaMemcpy(&sum, data, 4, cudaMemcpyDeviceToHost) == cudaSuccess && sum == 2, 9);
  if (child == 0) _exit(0);  // without a word to its peer
  require(all_reduce() == ncclSuccess, 10);
  require(Rank{0, 2, comm, nullptr}.await_error() == ncclRemoteError, 11);
  require(ncclCommAbort(comm) == ncclSuccess, 12);
  int status = 0;
  require(waitpid(child, &status, 0) == child && status == 0, 13);
  _exit(0);
}

TEST(NcclEmulation, WorksBetweenProcessesAndADeadOneIsARemoteError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has used no GPU
  EXPECT_EXIT(reduce_between_processes(), ::testing::ExitedWithCode(0), "rank 1 has closed the connection");
}

}  // namespace
}  // namespace cp::emulated
