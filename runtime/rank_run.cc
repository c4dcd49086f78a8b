#include "runtime/rank_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/rendezvous/compare_plans.h"
#include "runtime/rendezvous/compare_transfers.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/session.h"

namespace cp::runtime {

std::int64_t clock_offset_ns(RendezvousClient& client) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t own = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  std::int64_t first = own;
  for (const std::string& text : client.all_gather("clock", std::to_string(own), kAsLongAsItTakes))
    first = std::min(first, parse_int(text, "clock"));
  return own - first;
}

RankRun::RankRun(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client, Options options)
    : job_(job), client_(std::move(client)), options_(std::move(options)) {}

RankRunResult RankRun::run(RankPasses& passes) {
  compare(passes);
  connect(passes.plans().size() == passes.inputs().size());
  RankRunResult result;
  for (std::size_t pass = 0; pass < passes.inputs().size(); ++pass) {
    RankTrace trace;  // of a rank without a part: nothing
    trace.rank = job_.rank;
    if (pass < passes.plans().size()) {
      result.seconds.push_back(run_pass(passes, pass, trace));
      result.steps += trace.issued.size(), result.collectives += trace.observed.size();
    }
    if (options_.device.checksums != Checksums::off) compare_transfers(*client_, trace, kAsLongAsItTakes);
  }
  return result;
}

// A rank without a part knows what the plans are made from all the same.
void RankRun::compare(const RankPasses& passes) {
  for (std::size_t pass = 0; pass < passes.inputs().size(); ++pass) {
    PlanDigests digests{passes.inputs()[pass], {}};
    if (pass < passes.plans().size()) digests = plan_digests(passes.plans()[pass]);
    compare_plans(*client_, digests, kAsLongAsItTakes);
  }
}

void RankRun::connect(bool has_part) {
  const std::vector<std::string> parts =
      client_->all_gather("connect", has_part ? "part" : "", kAsLongAsItTakes);
  runs_on_all_ = std::find(parts.begin(), parts.end(), "") == parts.end();
  JoinedDeviceOptions options = options_.device;
  options.every_rank_prepares = runs_on_all_;
  device_.emplace(job_, client_, std::move(options));
  clock_offset_ns_ = clock_offset_ns(*client_);
}

double RankRun::run_pass(RankPasses& passes, std::size_t pass, RankTrace& trace) {
  const Bindings bindings = passes.bind(pass);
  trace.clock_offset_ns = clock_offset_ns_;
  if (options_.begin_pass) options_.begin_pass(trace);
  double seconds = 0;
  try {
    seconds = execute(passes.plans()[pass], bindings, trace);
  } catch (const Error&) {
    end_failed_pass(trace);
    throw;
  }
  trace.observed = device_->take_observed();
  trace.digests = passes.digests(pass);
  take_times(trace);
  if (options_.end_pass) options_.end_pass(trace);
  return seconds;
}

double RankRun::execute(const Plan& plan, const Bindings& bindings, RankTrace& trace) {
  const bool host_memory = device_->host_memory();
  RunOptions options{.trace = &trace};
  if (options_.issued) options.issued = [this, &trace] { options_.issued(trace); };
  options.kept = options_.kept && !host_memory;
  if (options_.warm_up && !host_memory) {
    options.warm_up = options.kept ? 2 : 1;
    options.ready = [this] {
      device_->take_observed();
      device_->take_times();
      if (runs_on_all_) client_->barrier("run", kAsLongAsItTakes);  // no rank's time holds another's copies
    };
  }
  return run_on_host_buffers(*device_, plan, {bindings, host_memory}, options).seconds;
}

void RankRun::take_times(RankTrace& trace) {
  DeviceTimes times = device_->take_times();
  trace.issued_times = std::move(times.steps), trace.observed_times = std::move(times.collectives);
}

// What it did until then. The first error is the one to tell.
void RankRun::end_failed_pass(RankTrace& trace) {
  if (!options_.end_pass) return;
  try {
    trace.observed = device_->take_observed();
    if (device_->host_memory()) take_times(trace);  // a GPU may be lost, and not answer
    options_.end_pass(trace);
  } catch (const Error&) {
  }
}

}  // namespace cp::runtime
