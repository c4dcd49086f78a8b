// A rank that loops over an all_reduce and an all_gather, and counts beside them what it does: run by cprun
// in the tests and by scripts/scorecard/operation, one process for each rank.
//
//   TRUTH     a folder; rank N keeps there, in rank-N, three numbers of 8 bytes: its pid, how many
//             collectives have begun, and how many have ended, by its own count. The memory is that of the
//             file, so that they are there whatever happens to it
//   LOOPS     how often, with two collectives each [until it is killed]
//   KILL_AT   the number in which rank WHO kills itself, once it has begun; KILL_AFTER: after which it does
//   PAUSE_US  at most, after each loop; the time is spent outside of collectives [300]
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"

namespace cp::testing {
namespace {

using runtime::JobEnvironment;

constexpr std::int64_t kCount = 4096;

std::int64_t number(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : parse_int(value, name);
}

class Truth {
 public:
  explicit Truth(Rank rank) {
    const char* folder = std::getenv("TRUTH");
    if (folder == nullptr) return;
    const int file = open(str(folder, "/rank-", rank).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CP_INVARIANT(file >= 0 && ftruncate(file, sizeof(Numbers)) == 0, "cannot write to ", folder);
    void* const memory = mmap(nullptr, sizeof(Numbers), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CP_INVARIANT(memory != MAP_FAILED, "cannot map a file of ", folder);
    close(file);
    numbers_ = static_cast<Numbers*>(memory);
    numbers_->pid = getpid();
  }

  void begun() {
    if (++numbers_->begun == kill_in_ + 1) kill(getpid(), SIGKILL);
  }
  void ended() { ++numbers_->ended; }
  void loop_ended() const {
    if (numbers_->ended > kill_after_) kill(getpid(), SIGKILL);
  }
  void kill_in(std::int64_t number) { kill_in_ = number; }
  void kill_after(std::int64_t number) { kill_after_ = number; }

 private:
  struct Numbers {
    std::int64_t pid;
    std::atomic<std::int64_t> begun, ended;
  };
  Numbers own_{};
  Numbers* numbers_ = &own_;
  std::int64_t kill_in_ = -2, kill_after_ = INT64_MAX;
};

Plan make_plan(Rank self, std::int32_t world_size) {
  std::vector<Rank> all(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  PlanBuilder b(self, host_target());
  const BufferId sums = b.inout("sums", DType::f32, kCount);
  const BufferId part = b.input("part", DType::f32, kCount);
  const BufferId whole = b.output("whole", DType::f32, kCount * world_size);
  const GroupId group = b.group("cp", all);
  const StreamId stream = b.stream("main");
  const View view = flat_view(sums, 0, kCount);
  b.add(stream, AllReduce{group, ReduceOp::max, view, view});
  b.add(stream, AllGather{group, flat_view(part, 0, kCount), flat_view(whole, 0, kCount * world_size)});
  return std::move(b).build(Hasher().add(std::string_view("counting")).digest());
}

int main() {
  const JobEnvironment job = runtime::job_environment().value();
  Truth truth(job.rank);
  if (number("WHO", -1) == job.rank) {
    truth.kill_in(number("KILL_AT", -2));
    truth.kill_after(number("KILL_AFTER", INT64_MAX));
  }
  try {
    const auto client = runtime::join(job);
    const Plan plan = make_plan(job.rank, job.world_size);
    runtime::JoinedDeviceOptions options;
    options.on_collective = [&](const runtime::CollectiveBegin&) { truth.begun(); };
    options.on_collective_end = [&](const runtime::CollectiveEnd&) { truth.ended(); };
    runtime::JoinedDevice device(job, client, std::move(options));
    std::vector<float> sums(kCount, 1.0F), part(kCount, 2.0F);
    std::vector<float> whole(static_cast<std::size_t>(kCount * job.world_size));
    const auto bytes = [](const std::vector<float>& data) {
      return static_cast<std::int64_t>(data.size() * sizeof(float));
    };
    std::minstd_rand random(static_cast<unsigned>(job.rank));
    const std::int64_t loops = number("LOOPS", INT64_MAX), pause = number("PAUSE_US", 300);
    for (std::int64_t loop = 0; loop < loops; ++loop) {
      execute(
          plan, device,
          {{0, sums.data(), bytes(sums)}, {1, part.data(), bytes(part)}, {2, whole.data(), bytes(whole)}});
      truth.loop_ended();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(pause + 1)));
    }
    client->barrier("end");
    client->goodbye();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return runtime::exit_code(error.kind());
  }
}

}  // namespace
}  // namespace cp::testing

int main() { return cp::testing::main(); }
