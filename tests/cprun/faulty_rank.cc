// A rank that misbehaves where it is asked to: run by cprun in the tests, one process for each rank.
//
//   FAULT   none, announce (the note alone), late (half a second), kill, stop, terminate, exit, segfault,
//           diverge
//   AT      before_rendezvous, in_rendezvous, connecting (before it does, and others are), in_collective,
//           between_steps, at_exit; of diverge: plan, step, length
//   WHO     the rank, or launcher: then rank 0 sends the signal to it
//   STEPS   plans to run, with a millisecond between them [6]
//   NOTE    a file that takes "<pid> <nanoseconds of the steady clock>" just before the fault
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <netinet/in.h>
#include <numeric>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/compare_plans.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using runtime::JobEnvironment;
using runtime::RendezvousClient;

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

class Fault {
 public:
  explicit Fault(const JobEnvironment& job)
      : kind_(variable("FAULT", "none")), place_(variable("AT", "")), who_(variable("WHO", "")) {
    mine_ = kind_ != "none" && (who_ == str(job.rank) || (who_ == "launcher" && job.rank == 0));
  }

  bool is_at(const char* place) const { return mine_ && place_ == place; }

  // Misbehaves where this is the place, once.
  void at(const char* place) {
    if (!is_at(place)) return;
    mine_ = false;
    note();
    if (kind_ == "announce") return;
    if (kind_ == "late") return std::this_thread::sleep_for(500ms);
    if (who_ == "launcher") return to_launcher();
    if (kind_ == "exit") {
      std::fputs("as it was told\n", stderr);
      _exit(1);
    }
    const std::map<std::string, int> signals = {
        {"kill", SIGKILL}, {"stop", SIGSTOP}, {"terminate", SIGTERM}, {"segfault", SIGSEGV}};
    const int signal = signals.at(kind_);
    if (signal != SIGKILL && signal != SIGSTOP) std::signal(signal, SIG_DFL);  // a sanitizer's own
    kill(getpid(), signal);  // the whole process, where raise() is for a thread
    std::this_thread::sleep_for(60s);
  }

  static void note() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::ofstream(variable("NOTE", "/dev/null"))
        << getpid() << ' ' << std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() << std::endl;
  }

 private:
  // A launcher that is stopped is waited for; else it is about to end this process.
  void to_launcher() const {
    const std::map<std::string, int> signals = {{"kill", SIGKILL}, {"stop", SIGSTOP}, {"terminate", SIGTERM}};
    kill(getppid(), signals.at(kind_));
    if (kind_ != "stop") std::this_thread::sleep_for(60s);
  }

  std::string kind_, place_, who_;
  bool mine_ = false;
};

// The first bytes of a frame, so that the server is amid the exchange with this process.
void begin_frame(const JobEnvironment& job) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(job.port);
  inet_pton(AF_INET, job.host.c_str(), &address.sin_addr);
  connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const unsigned char half[] = {0, 0};
  [[maybe_unused]] const ssize_t sent = send(descriptor, half, sizeof half, MSG_NOSIGNAL);
}

constexpr std::int64_t kCount = 1000, kOtherCount = 600;

// One AllReduce; a rank that differs takes the largest where the others add.
Plan make_plan(Rank self, std::int32_t world_size, bool differs, std::int64_t count = kCount) {
  std::vector<Rank> all(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  PlanBuilder b(self, host_target());
  const BufferId x = b.inout("x", DType::f32, count);
  const View whole = flat_view(x, 0, count);
  const ReduceOp op = differs ? ReduceOp::max : ReduceOp::sum;
  const GroupId group = b.group("cp", all);
  b.add(b.stream("main"), AllReduce{group, op, whole, whole});
  return std::move(b).build(Hasher().add(differs ? "another" : "the same").digest());
}

void run(const JobEnvironment& job, const std::shared_ptr<RendezvousClient>& client, Fault& fault) {
  if (fault.is_at("plan")) Fault::note();
  const Plan plan = make_plan(job.rank, job.world_size, fault.is_at("plan"));
  const Plan other = make_plan(job.rank, job.world_size, true);
  runtime::compare_plans(*client, plan);
  client->barrier("connect");
  fault.at("connecting");
  runtime::JoinedDeviceOptions options;
  options.on_collective = [&](const runtime::CollectiveBegin& begin) {
    if (begin.number == 3) fault.at("in_collective");
  };
  runtime::JoinedDevice device(job, client, std::move(options));
  const Plan shorter = make_plan(job.rank, job.world_size, false, kOtherCount);
  std::vector<float> x(kCount, 1.0F);
  const std::int64_t steps = parse_int(variable("STEPS", "6"), "STEPS");
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == 2) fault.at("between_steps");
    const bool differs = step == 2 && fault.is_at("step"), is_shorter = step == 2 && fault.is_at("length");
    if (differs || is_shorter) Fault::note();
    const std::int64_t count = is_shorter ? kOtherCount : kCount;
    execute(differs      ? other
            : is_shorter ? shorter
                         : plan,
            device, {{0, x.data(), count * std::int64_t{sizeof(float)}}});
    std::this_thread::sleep_for(1ms);
  }
  client->barrier("end");
}

// A consequence of another's failure says so.
int failed(RendezvousClient* client, Rank rank, const Error& error) {
  const auto until = std::chrono::steady_clock::now() + 1s;
  while (client != nullptr && error.kind() == ErrorKind::peer_lost && !client->failure() &&
         std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(5ms);
  const auto cause = client == nullptr ? std::nullopt : client->failure();
  const bool is_cause = !cause || cause->rank == rank;
  if (is_cause && client != nullptr) client->report_failure(error.kind(), error.what());
  std::fprintf(stderr, "%s\n", is_cause ? error.what() : ("stopped: " + to_string(*cause)).c_str());
  return runtime::exit_code(is_cause ? error.kind() : ErrorKind::peer_lost);
}

int main() {
  const rlimit no_core{};
  setrlimit(RLIMIT_CORE, &no_core);
  const JobEnvironment job = runtime::job_environment().value();
  std::shared_ptr<RendezvousClient> client;
  try {
    Fault fault(job);
    fault.at("before_rendezvous");
    if (fault.is_at("in_rendezvous")) begin_frame(job);
    fault.at("in_rendezvous");
    client = runtime::join(job);
    run(job, client, fault);
    client->goodbye();
    fault.at("at_exit");
    return 0;
  } catch (const Error& error) {
    return failed(client.get(), job.rank, error);
  }
}

}  // namespace
}  // namespace cp::testing

int main() { return cp::testing::main(); }
