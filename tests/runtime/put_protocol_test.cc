// Rings by puts (nccl_calls.h): a put writes into a peer's memory whenever it comes to that, so the calls
// themselves must keep it from memory that is in use. Here all orders that streams, events and signals allow
// are drawn from, with kernels and puts that take as long as they like.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_calls.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

using runtime::NcclCall;
using Function = NcclCall::Function;

bool is_data(const NcclCall& call) { return call.recv_buffer.buffer >= 0; }

class World {
 public:
  World(const std::vector<Plan>& plans, std::vector<std::vector<NcclCall>> calls, std::uint64_t seed)
      : plans_(plans), random_(seed) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      RankState& made = ranks_.emplace_back();
      made.streams.resize(plans[rank].streams.size());
      for (const NcclCall& call : calls[rank]) {
        if (call.function == Function::group_start || call.function == Function::group_end) continue;
        made.streams[idx(call.stream)].queue.push_back(call);
        if (call.function == Function::wait_signal && is_data(call))
          made.arrivals[peer_of(rank, call)].push_back(call.launch);
      }
      made.steps = steps_of(plans[rank]);
    }
  }

  // What went wrong; empty if nothing did.
  std::string run() {
    while (true) {
      std::vector<std::pair<std::size_t, std::size_t>> ready;
      bool left = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (std::size_t s = 0; s < ranks_[rank].streams.size(); ++s) {
          left = left || !ranks_[rank].streams[s].done();
          if (may_go_on(rank, ranks_[rank].streams[s])) ready.emplace_back(rank, s);
        }
      }
      if (!left) return "";
      if (ready.empty()) return "nothing can go on";
      const auto [rank, s] = ready[random_() % ready.size()];
      go_on(rank, ranks_[rank].streams[s]);
      if (!wrong_.empty()) return wrong_;
    }
  }

 private:
  struct Stream {
    std::vector<NcclCall> queue;
    std::size_t at = 0;
    bool begun = false;  // of the kernel or put at the front
    bool done() const { return at == queue.size(); }
    const NcclCall& front() const { return queue[at]; }
  };
  struct RankState {
    std::vector<Stream> streams;
    std::vector<StepRef> steps;
    std::map<EventId, bool> events;
    std::map<std::size_t, std::int64_t> signals, waited;        // by peer
    std::map<std::size_t, std::vector<std::int64_t>> arrivals;  // the launches that await puts of a peer
    std::map<std::size_t, std::size_t> puts;                    // that came from a peer
    std::map<BufferId, std::int64_t> writer;                    // the launch that wrote it last
    std::map<BufferId, std::pair<int, int>> in_use;             // who reads and writes it at the moment
  };

  std::size_t peer_of(std::size_t rank, const NcclCall& call) const {
    return idx(plans_[rank].groups[idx(call.comm)].ranks[idx(call.peer)]);
  }
  bool is_symmetric(std::size_t rank, BufferId buffer) const {
    return plans_[rank].buffers[idx(buffer)].symmetric;
  }

  bool may_go_on(std::size_t rank, const Stream& stream) {
    if (stream.done()) return false;
    const NcclCall& call = stream.front();
    if (call.function == Function::stream_wait_event) return ranks_[rank].events[call.event];
    if (call.function != Function::wait_signal) return true;
    const std::size_t peer = peer_of(rank, call);
    return ranks_[rank].signals[peer] > ranks_[rank].waited[peer];
  }

  void go_on(std::size_t rank, Stream& stream) {
    const NcclCall& call = stream.front();
    RankState& self = ranks_[rank];
    switch (call.function) {
      case Function::event_record:
        self.events[call.event] = true;
        break;
      case Function::stream_wait_event:
        break;
      case Function::signal:
        ++ranks_[peer_of(rank, call)].signals[rank];
        break;
      case Function::wait_signal:
        ++self.waited[peer_of(rank, call)];
        break;
      case Function::kernel:
      case Function::put_signal:
        if (!stream.begun) {
          stream.begun = true;
          use(rank, call, 1);
          return;
        }
        stream.begun = false;
        use(rank, call, -1);
        if (call.function == Function::put_signal) arrive(rank, call);
        break;
      default:
        wrong_ = "another call";
    }
    ++stream.at;
  }

  // Calls f(rank, buffer, writes) for the symmetric memory that a kernel or a put touches.
  template <class F>
  void for_each_use(std::size_t rank, const NcclCall& call, const F& f) {
    if (call.function == Function::put_signal) {
      f(rank, call.send_buffer.buffer, false), f(peer_of(rank, call), call.recv_buffer.buffer, true);
      return;
    }
    for_each_access(plans_[rank], ranks_[rank].steps[idx(call.launch)].step->work, [&](const Access& access) {
      const BufferId buffer = access.view->buffer;
      if (!is_symmetric(rank, buffer)) return;
      if (access.reads) f(rank, buffer, false);
      if (access.writes) f(rank, buffer, true);
    });
  }

  // The last step before `launch`, in the plan's order, that writes the buffer: what this one has to find.
  std::int64_t writer_before(std::size_t rank, std::int64_t launch, BufferId buffer) {
    for (std::int64_t step = launch - 1; step >= 0; --step) {
      bool writes = false;
      for_each_access(plans_[rank], ranks_[rank].steps[idx(step)].step->work, [&](const Access& access) {
        writes = writes || (access.writes && access.view->buffer == buffer);
      });
      if (writes) return step;
    }
    return -1;
  }

  void use(std::size_t rank, const NcclCall& call, int number) {
    for_each_use(rank, call, [&](std::size_t where, BufferId buffer, bool writes) {
      auto& [reading, writing] = ranks_[where].in_use[buffer];
      const auto words = [&](const char* what) {
        return str(what, " of rank ", rank, " in launch ", call.launch, ": ",
                   plans_[where].buffers[idx(buffer)].name, " of rank ", where);
      };
      if (number > 0 && writes && reading + writing > 0) wrong_ = words("writes what is in use");
      if (number > 0 && !writes && writing > 0) wrong_ = words("reads what is being written");
      (writes ? writing : reading) += number;
      if (number < 0) {
        if (writes && where == rank) ranks_[where].writer[buffer] = call.launch;
        return;
      }
      if (writes) return;
      const std::int64_t expected = writer_before(rank, call.launch, buffer);
      const auto known = ranks_[where].writer.find(buffer);
      if (known == ranks_[where].writer.end() || known->second != expected)
        wrong_ = words("does not find what the plan says");
    });
  }

  void arrive(std::size_t rank, const NcclCall& call) {
    const std::size_t peer = peer_of(rank, call);
    RankState& there = ranks_[peer];
    there.writer[call.recv_buffer.buffer] = there.arrivals[rank].at(there.puts[rank]++);
    ++there.signals[rank];
  }

  const std::vector<Plan>& plans_;
  std::vector<RankState> ranks_;
  std::mt19937_64 random_;
  std::string wrong_;
};

std::vector<std::vector<Plan>> rings() {
  std::vector<std::vector<Plan>> all;
  for (const int ranks : {2, 3, 6}) {
    for (const char* name : {"ring", "double_ring"}) {
      for (const int slots : {2, 3}) {
        for (const bool windowed : {false, true}) {
          AttentionProblem problem;
          problem.q_len = problem.kv_len = 41, problem.q_heads = problem.kv_heads = 1, problem.head_dim = 2;
          problem.causal = windowed;
          if (windowed) problem.window = 12;
          Strategy strategy = named_strategy({name, {}, {}}, problem, ranks);
          strategy.slots = slots, strategy.transfers = Strategy::Transfers::copy_engine;
          std::vector<Rank> every;
          every.reserve(static_cast<std::size_t>(ranks));
          for (Rank rank = 0; rank < ranks; ++rank) every.push_back(rank);
          all.push_back(attention_plans({problem, every, strategy, true, {}}, AttentionPass::forward));
        }
      }
    }
  }
  return all;
}

constexpr std::uint64_t kOrders = 200;

TEST(PutProtocol, NoPutTouchesMemoryInUse) {
  int puts = 0;
  for (const std::vector<Plan>& plans : rings()) {
    std::vector<std::vector<NcclCall>> calls;
    calls.reserve(plans.size());
    for (const Plan& plan : plans) calls.push_back(runtime::nccl_calls(plan));
    for (const auto& of_rank : calls)
      puts += static_cast<int>(std::ranges::count(of_rank, Function::put_signal, &NcclCall::function));
    for (std::uint64_t seed = 0; seed < kOrders; ++seed)
      ASSERT_EQ(World(plans, calls, seed).run(), "") << plans.size() << " ranks, order " << seed;
  }
  EXPECT_GT(puts, 100);
}

// What each of the signals is for: without those that say that memory is free, or those behind the data,
// something goes wrong in some order.
TEST(PutProtocol, NoSignalIsForNothing) {
  for (const bool data : {false, true}) {
    int found = 0;
    for (const std::vector<Plan>& plans : rings()) {
      std::vector<std::vector<NcclCall>> calls;
      for (const Plan& plan : plans) {
        std::vector<NcclCall>& kept = calls.emplace_back(runtime::nccl_calls(plan));
        std::erase_if(kept, [&](const NcclCall& call) {
          if (call.function == Function::wait_signal) return is_data(call) == data;
          return call.function == Function::signal && !data;
        });
      }
      // Without the waits for data nothing says which put is whose.
      bool wrong = false;
      for (std::uint64_t seed = 0; seed < kOrders && !wrong; ++seed) {
        try {
          wrong = !World(plans, calls, seed).run().empty();
        } catch (const std::out_of_range&) {
          wrong = true;
        }
      }
      found += wrong ? 1 : 0;
    }
    EXPECT_GT(found, 0) << (data ? "data" : "free");
  }
}

TEST(PutProtocol, TheRecordsAreThoseOfAnExchange) {
  for (const std::vector<Plan>& plans : rings()) {
    for (const Plan& plan : plans) {
      std::vector<Volume> expected, actual;
      for (const StepRef& ref : steps_of(plan)) {
        if (is_collective(*ref.step)) expected.push_back(volume(std::get<Collective>(ref.step->work), plan));
      }
      for (const OpRecord& record : runtime::observed_records(runtime::nccl_calls(plan), plan)) {
        EXPECT_EQ(record.operation, "exchange");
        actual.push_back({record.sent, record.received});
      }
      EXPECT_EQ(actual, expected);
    }
  }
}

}  // namespace
}  // namespace cp
