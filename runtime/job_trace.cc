#include "runtime/job_trace.h"

#include <utility>
#include <variant>

#include "runtime/this_host.h"
#include "shared/base/error.h"
#include "shared/base/version.h"
#include "shared/plan/canonical.h"
#include "shared/plan/lanes.h"
#include "traces/environment.h"

namespace cp::runtime {
namespace {

// What prepare() made ready.
constexpr PreparedId kPrepared = 0;

}  // namespace

Environment environment_of(const JobEnvironment& job, const std::map<std::string, std::string>& libraries) {
  EnvironmentOptions options;
  options.host = host_name();
  options.backend = job.backend;
  options.libraries = libraries;
  options.cpsim_version = CP_VERSION;
  options.world_size = job.world_size;
  options.hash_host = job.hash_host;
  options.host_salt = job.token;
  return this_environment(options);
}

JobTrace::JobTrace(Device& device, const JobEnvironment& job,
                   const std::map<std::string, std::string>& libraries)
    : ForwardingDevice(device), file_(rank_trace_path(job.trace_folder, job.rank)) {
  trace_.rank = job.rank;
  trace_.environment = environment_of(job, libraries);
}

void JobTrace::prepare(const Plan& plan, const Bindings& bindings) {
  ForwardingDevice::prepare(plan, bindings);
  used_ = kept_[kPrepared] = {&plan, 0};
}

PreparedId JobTrace::keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
  const PreparedId id = ForwardingDevice::keep(plan, bindings, lane);
  kept_[id] = {&plan, lane};
  return id;
}

void JobTrace::use(PreparedId prepared, const Bindings& changed) {
  ForwardingDevice::use(prepared, changed);
  used_ = kept_.at(prepared);
}

void JobTrace::release(PreparedId prepared) {
  ForwardingDevice::release(prepared);
  kept_.erase(prepared);
}

void JobTrace::launch(const StepRef& step, std::int64_t iteration) {
  const Plan& plan = *used_.plan;
  std::int64_t sequence = -1;
  if (const auto* collective = std::get_if<Collective>(&step.step->work))
    sequence = sequences_[canonical_name(plan.groups[static_cast<std::size_t>(group_of(*collective))])]++;
  trace_.issued.push_back(issued_record(plan, *step.step, sequence));
  trace_.issued.back().stream = stream_in_traces(used_.lane, step.step->stream);
  ForwardingDevice::launch(step, iteration);
}

void JobTrace::write(std::vector<OpRecord> observed, bool is_whole) {
  trace_.observed = std::move(observed);
  file_.append(trace_);
  if (is_whole) file_.finish();
}

}  // namespace cp::runtime
