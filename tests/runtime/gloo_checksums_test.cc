// One flipped bit between two processes: the checksums name sender and receiver.
#ifdef CP_HAVE_GLOO
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/gloo/gloo_device.h"
#endif

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "shared/plan/transfer_check.h"
#include "tests/runtime/processes.h"
#include "traces/trace_proto.h"

#ifdef CP_HAVE_GLOO

namespace {

constexpr std::size_t kBlockBytes = 4000;

// Which of this process's writes of so many bytes has one bit flipped; < 0: none.
std::atomic<int> flipped_send{-1};

}  // namespace

// Gloo writes to its sockets by this; the definition of the program comes before that of the C library, where
// it is not hidden from libraries.
extern "C" __attribute__((visibility("default"))) ssize_t writev(int file, const struct iovec* parts,
                                                                 int count) {
  const struct iovec& payload = parts[count - 1];  // what is left of it, behind its header at first
  if (payload.iov_len < kBlockBytes || flipped_send < 0 || flipped_send-- > 0)
    return syscall(SYS_writev, file, parts, count);
  std::vector<char> bytes(payload.iov_len);
  std::memcpy(bytes.data(), payload.iov_base, payload.iov_len);
  bytes[1234] = static_cast<char>(bytes[1234] ^ 1);  // of the lowest bits of an f32
  struct iovec flipped[2] = {parts[0], parts[0]};
  flipped[count - 1] = {bytes.data(), bytes.size()};
  return syscall(SYS_writev, file, flipped, count);
}

#endif

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooChecksums, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

constexpr int kRanks = 3;
constexpr Rank kSender = 1;
constexpr std::int64_t kBlock = kBlockBytes / sizeof(float);
constexpr std::int64_t kLongBlock = 800 * kBlock;  // 3.2 MB: four pieces

struct Operation {
  std::string name;
  int sends = 0;  // of a block, by the sender
};
const std::vector<Operation> kOperations = {{"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce", 4},
                                            {"all_to_all", 2}, {"broadcast", 1},      {"exchange", 2}};

Plan plan_of_blocks(const std::string& operation, Rank rank, std::int64_t block) {
  PlanBuilder b(rank, host_target());
  const GroupId group = b.group("g", {0, 1, 2});
  const StreamId stream = b.stream("s");
  const BufferId in = b.input("in", DType::f32, kRanks * block),
                 out = b.output("out", DType::f32, kRanks * block);
  const View all_in = flat_view(in, 0, kRanks * block), all_out = flat_view(out, 0, kRanks * block);
  const View block_in = flat_view(in, 0, block), block_out = flat_view(out, 0, block);
  if (operation == "all_gather") b.add(stream, AllGather{group, block_in, all_out});
  if (operation == "reduce_scatter") b.add(stream, ReduceScatter{group, ReduceOp::sum, all_in, block_out});
  if (operation == "all_reduce") b.add(stream, AllReduce{group, ReduceOp::sum, all_in, all_out});
  if (operation == "all_to_all") b.add(stream, AllToAll{group, all_in, all_out});
  if (operation == "broadcast") b.add(stream, Broadcast{group, kSender, block_in, block_out});
  if (operation == "exchange") {
    Exchange exchange{.group = group, .sends = {}, .recvs = {}, .counts = {}};
    std::vector<Count> counts;
    for (std::int32_t from = 0; from < kRanks; ++from) {
      for (std::int32_t to = 0; to < kRanks; ++to) {
        if (from == to) continue;
        counts.push_back({from, to, block});
        if (from == rank) exchange.sends.push_back({to, flat_view(in, to * block, block)});
        if (to == rank) exchange.recvs.push_back({from, flat_view(out, from * block, block)});
      }
    }
    exchange.counts = counts_digest(counts);
    b.add(stream, exchange);
  }
  return std::move(b).build({});
}

// Each rank's trace, or what it threw, when the sender's `flipped`-th write of payload has a bit flipped.
std::vector<std::string> run(const std::string& operation, Checksums checksums, int flipped,
                             std::int64_t block = kBlock) {
  const testing::TemporaryDirectory store;
  return testing::run_processes(kRanks, [&](Rank rank) {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path(), .checksums = checksums});
    const Plan plan = plan_of_blocks(operation, rank, block);
    std::vector<float> in(kRanks * block), out(kRanks * block);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(rank) + static_cast<float>(i);
    const auto bytes = static_cast<std::int64_t>(in.size() * sizeof(float));
    RankTrace trace;
    flipped_send = rank == kSender ? flipped : -1;
    execute(plan, device, {{0, in.data(), bytes}, {1, out.data(), bytes}}, &trace);
    trace.observed = device.take_observed();
    return to_proto(trace).SerializeAsString();
  });
}

std::vector<RankTrace> traces_of(const std::vector<std::string>& said) {
  std::vector<RankTrace> traces;
  for (const std::string& bytes : said) {
    proto::RankTrace message;
    EXPECT_TRUE(message.ParseFromString(bytes)) << bytes;
    traces.push_back(from_proto(message));
  }
  return traces;
}

TEST(GlooChecksums, WhatArrivesAsItWasSentPasses) {
  for (const Operation& operation : kOperations) {
    for (const Checksums checksums : {Checksums::off, Checksums::end, Checksums::each}) {
      const std::vector<RankTrace> traces = traces_of(run(operation.name, checksums, -1));
      EXPECT_FALSE(find_transfer_fault(traces)) << operation.name;
      EXPECT_EQ(first_difference(traces, traces), std::nullopt) << operation.name;
      for (const RankTrace& trace : traces) {
        ASSERT_EQ(trace.observed.size(), 1u);
        EXPECT_EQ(trace.observed[0].checksums.has_value(), checksums != Checksums::off) << operation.name;
      }
    }
  }
}

TEST(GlooChecksums, AFlippedBitIsFoundAtTheEnd) {
  for (const Operation& operation : kOperations) {
    for (int send = 0; send < operation.sends; ++send) {
      const auto fault = find_transfer_fault(traces_of(run(operation.name, Checksums::end, send)));
      ASSERT_TRUE(fault) << operation.name << ", send " << send;
      EXPECT_EQ(fault->facts().sender, kSender) << fault->what();
      EXPECT_EQ(fault->facts().operation, operation.name);
    }
    EXPECT_FALSE(find_transfer_fault(traces_of(run(operation.name, Checksums::off, 0))))
        << operation.name << ": without checksums nobody looks";
  }
}

// A member writes to two others: four pieces each, or the whole payload, which the kernel takes in one call
// or in several.
TEST(GlooChecksums, AFlippedBitOfALongPayloadIsFound) {
  const std::vector<std::pair<std::string, std::vector<int>>> writes = {
      {"all_gather", {1, 3, 6}}, {"all_reduce", {1, 3, 6}}, {"broadcast", {0, 1}}};
  for (const auto& [operation, flipped] : writes) {
    EXPECT_FALSE(find_transfer_fault(traces_of(run(operation, Checksums::end, -1, kLongBlock)))) << operation;
    for (const int write : flipped) {
      const auto fault = find_transfer_fault(traces_of(run(operation, Checksums::end, write, kLongBlock)));
      ASSERT_TRUE(fault) << operation << ", write " << write;
      EXPECT_EQ(fault->facts().sender, kSender) << fault->what();
    }
  }
}

TEST(GlooChecksums, AFlippedBitIsFoundAtOnceByItsReceiver) {
  for (const Operation& operation : kOperations) {
    for (int send = 0; send < operation.sends; ++send) {
      const std::vector<std::string> said = run(operation.name, Checksums::each, send);
      int found = 0;
      for (const Rank rank : {0, 2}) {
        const std::string text = str(operation.name, " #0 on g[0,1,2]: from rank 1 to rank ", rank,
                                     " the payload changed on its way");
        found += said[static_cast<std::size_t>(rank)].find(text) != std::string::npos;
      }
      // What a broadcast passes on is wrong at both receivers.
      EXPECT_GE(found, 1) << operation.name << ", send " << send << ": " << said[0] << "; " << said[2];
    }
  }
}

#endif

}  // namespace
}  // namespace cp
