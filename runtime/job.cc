#include "runtime/job.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "runtime/backend.h"
#include "runtime/job_environment.h"
#include "runtime/job_trace.h"
#include "runtime/joined_device.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/compare_plans.h"
#include "shared/base/error.h"
#include "shared/plan/prepared_plans.h"
#include "shared/redistribute/lower.h"

namespace cp::runtime {
namespace {

JobEnvironment environment() {
  if (auto job = job_environment()) return *std::move(job);
  throw InvalidInput(
      "this program runs as one rank of several; start it with: cprun --nproc-per-node 4 -- ./program");
}

}  // namespace

class Job::Impl {
 public:
  explicit Impl(std::size_t most_plans)
      : environment_(environment()),
        client_(runtime::join(environment_)),
        comparison_(*client_),
        plans_(most_plans, [this](const Plan& plan) { compare(plan); }) {
    const bool traces = !environment_.trace_folder.empty();
    device_.emplace(environment_, client_, JoinedDeviceOptions{.traces = traces, .keeps_observed = true});
    if (traces) trace_.emplace(*device_, environment_, library_versions(environment_.backend));
    prepared_.emplace(device());
  }

  ~Impl() {
    if (finished_) return;
    if (std::uncaught_exceptions() == exceptions_) {
      end_or_exit();
      return;
    }
    if (!last_error_) last_error_ = device_->last_error();
    prepared_.reset();
    try {
      write_trace(false);
    } catch (const Error&) {
      // The first error is the one to tell.
    }
    leave_device();
    if (client_->failure()) return;  // this is a consequence of that one
    const Error error =
        last_error_.value_or(Error(ErrorKind::check_failed, "the program ended with an exception"));
    client_->report_failure(error.kind(), error.what());
  }

  // A run that was waited for has ended, but the device may still have to tell the server of its collectives;
  // whoever says goodbye before that has left without them. The device stays until all are done: a rank that
  // is may still have to send what others wait for, by the library's threads.
  void finish() {
    if (std::exchange(finished_, true)) return;
    try {
      device_->synchronize();
      write_trace(true);
      client_->goodbye();
    } catch (const Error& error) {
      leave_device();
      if (!client_->failure()) client_->report_failure(error.kind(), error.what());
      throw;
    }
    leave_device();
  }

  Device& device() { return trace_ ? static_cast<Device&>(*trace_) : *device_; }

  void write_trace(bool is_whole) {
    if (trace_) trace_->write(device_->take_observed(), is_whole);
  }

  void leave_device() {
    prepared_.reset();
    trace_.reset();
    device_.reset();
  }

  // A destructor cannot throw, and a program whose ranks disagree must not end with 0.
  void end_or_exit() {
    try {
      finish();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::fflush(nullptr);
      std::_Exit(exit_code(error.kind()));
    }
  }

  // A plan that a full cache dropped and that is made again was compared before, on all ranks alike.
  void compare(const Plan& plan) {
    if (!compared_.insert(digest(plan)).second) return;
    try {
      comparison_.compare(plan);
    } catch (const Error& error) {
      last_error_.emplace(error);
      throw;
    }
  }

  PlanRun redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                       RankTrace* trace, CallerStream caller) {
    Hasher hasher;
    hasher.add(std::string_view("redistribute")).add(environment_.rank);
    hash(hash(hasher, in.layout), out.layout);
    hash(hasher, options);
    if (!has_part(in, out)) return pass(hasher);
    return run(hasher, in, out, trace, caller, [&] {
      return lower(plan_redistribution(in.layout, out.layout, options), environment_.rank, device_->target());
    });
  }

  PlanRun redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                                const DTensor& grad_in, const GradientOptions& options, RankTrace* trace,
                                CallerStream caller) {
    Hasher hasher;
    hasher.add(std::string_view("redistribute_backward")).add(environment_.rank);
    // What backward_plan() compares the tensors with follows from these layouts, but not the tensors' own.
    for (const Layout* layout : {&in, &out, &grad_out.layout, &grad_in.layout}) hash(hasher, *layout);
    hasher.add(grad_out.size_bytes).add(grad_in.size_bytes);
    hash(hasher, options);
    if (!has_part(grad_out, grad_in)) return pass(hasher);
    return run(hasher, grad_out, grad_in, trace, caller, [&] {
      return backward_plan(environment_.rank, in, out, grad_out, grad_in, options, device_->target());
    });
  }

  bool has_part(const DTensor& in, const DTensor& out) const {
    return in.layout.mesh.contains(environment_.rank) || out.layout.mesh.contains(environment_.rank);
  }

  // Of a rank that has no part in a move: its cache keeps step with those of the others.
  PlanRun pass(const Hasher& key) {
    prepared_->pass(key.digest());
    return {};
  }

  template <class Make>
  PlanRun run(const Hasher& key, const DTensor& in, const DTensor& out, RankTrace* trace, CallerStream caller,
              const Make& make) {
    const auto plan = [&]() -> const Plan& { return plans_.get(key.digest(), make); };
    const Bindings bindings = {{kRedistributeInput, in.data, in.size_bytes},
                               {kRedistributeOutput, out.data, out.size_bytes}};
    return prepared_->get(key.digest(), plan, bindings).run(bindings, caller, trace);
  }

 private:
  friend class Job;

  const JobEnvironment environment_;
  std::shared_ptr<RendezvousClient> client_;
  GroupPlanComparison comparison_;
  std::set<Digest> compared_;  // plans
  std::optional<Error> last_error_;
  PlanCache plans_;
  std::optional<JoinedDevice> device_;
  std::optional<JobTrace> trace_;          // where cprun wants one
  std::optional<PreparedPlans> prepared_;  // redistributions
  const int exceptions_ = std::uncaught_exceptions();
  bool finished_ = false;
};

Job::Job(std::size_t most_plans) : impl_(std::make_unique<Impl>(most_plans)) {}
Job::~Job() = default;
void Job::finish() { impl_->finish(); }

Rank Job::rank() const { return impl_->environment_.rank; }
std::int32_t Job::world_size() const { return impl_->environment_.world_size; }
std::int32_t Job::local_rank() const { return impl_->environment_.local_rank; }
Device& Job::device() { return impl_->device(); }
bool Job::host_memory() const { return impl_->device_->host_memory(); }
const Target& Job::target() const { return impl_->device_->target(); }
PlanCache& Job::plans() { return impl_->plans_; }
RendezvousClient& Job::rendezvous() { return *impl_->client_; }
void Job::barrier(const std::string& name) { impl_->client_->barrier(name); }
void Job::redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                       RankTrace* trace, CallerStream caller) {
  impl_->redistribute(in, out, options, trace, caller).wait();
}

void Job::redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                                const DTensor& grad_in, const GradientOptions& options, RankTrace* trace,
                                CallerStream caller) {
  impl_->redistribute_backward(in, out, grad_out, grad_in, options, trace, caller).wait();
}

PlanRun Job::start_redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                                CallerStream caller) {
  return impl_->redistribute(in, out, options, nullptr, caller);
}

PlanRun Job::start_redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                                         const DTensor& grad_in, const GradientOptions& options,
                                         CallerStream caller) {
  return impl_->redistribute_backward(in, out, grad_out, grad_in, options, nullptr, caller);
}

}  // namespace cp::runtime
