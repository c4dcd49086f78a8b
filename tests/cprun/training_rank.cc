// A rank of a training, run by cprun in the tests: training_rank SCENARIO LOSSES. Rank 0 adds a line to
// LOSSES behind each step: its number, and the loss, exactly.
//
//   WHO     the rank that the others of these are about
//   AT      a phase of checkpoints (traces/checkpoints/checkpoint_phase.h) behind which it kills itself, when
//           it gets there in its second checkpoint
//   OTHER   the scenario that it has in place of SCENARIO
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "sim/scenario/train_job.h"
#include "sim/scenario/training_run.h"
#include "traces/checkpoints/checkpoint_phase.h"
#include "traces/scenario.h"

namespace cp::testing {
namespace {

using runtime::JobEnvironment;
using runtime::RendezvousClient;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void run(const JobEnvironment& job, const std::shared_ptr<RendezvousClient>& client, std::string scenario,
         const char* losses) {
  const bool is_it = variable("WHO") == str(job.rank);
  const std::string at = is_it ? variable("AT") : "", other = is_it ? variable("OTHER") : "";
  if (!other.empty()) scenario = other;
  const sim::TrainJob training = sim::make_train_job(read_scenario_file(scenario).train());
  runtime::JoinedDevice device(job, client, {});
  sim::TrainingOptions options;
  options.gather = [&](const std::string& name, const std::string& own) {
    return client->all_gather(name, own, runtime::kAsLongAsItTakes);
  };
  options.on_event = [&](const sim::TrainingEvent& event) {
    if (event.kind != sim::TrainingEvent::Kind::step) return;
    std::FILE* file = std::fopen(losses, "a");
    std::fprintf(file, "%lld %a\n", static_cast<long long>(event.step), event.loss);
    std::fclose(file);
  };
  int times = 0;
  options.on_phase = [&](CheckpointPhase phase) {
    if (kCheckpointPhases[static_cast<std::size_t>(phase)].name == at && ++times == 2)
      kill(getpid(), SIGKILL);
  };
  sim::run_training(training, device, options);
  client->barrier("trained", runtime::kAsLongAsItTakes);
}

int main(char** argv) {
  std::shared_ptr<RendezvousClient> client;
  const JobEnvironment job = runtime::job_environment().value();
  try {
    client = runtime::join(job);
    run(job, client, argv[1], argv[2]);
    client->goodbye();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return runtime::exit_code(error.kind());
  }
}

}  // namespace
}  // namespace cp::testing

int main(int argc, char** argv) { return argc == 3 ? cp::testing::main(argv) : 2; }
