#include "runtime/job.h"

#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/compare_plans.h"
#include "shared/base/error.h"
#include "shared/plan/execute.h"
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
    device_.emplace(environment_, client_);
  }

  ~Impl() {
    if (!last_error_) last_error_ = device_->last_error();
    const bool ends_well = std::uncaught_exceptions() == exceptions_;
    if (ends_well) await_others();
    device_.reset();
    if (ends_well) {
      client_->goodbye();
    } else if (!client_->failure()) {  // else this is a consequence of that one
      const auto [code, text] = last_error_.value_or(
          std::pair(ExitCode::check_failed, std::string("the program ends by an exception")));
      client_->report_failure(code, text);
    }
  }

  // A rank that is done may still have to send what others wait for: a library's threads do it. A rank that comes late finds the others'
  // marks, also of those that have gone.
  void await_others() {
    try {
      if (client_->add("job/ends", 1) == environment_.world_size) {
        client_->set("job/ended", "");
      } else {
        client_->get("job/ended");
      }
    } catch (const Error&) {  // a rank that goes on for longer, or has failed
    }
  }

  // A plan that a full cache dropped and that is made again was compared before, on all ranks alike.
  void compare(const Plan& plan) {
    if (!compared_.insert(digest(plan)).second) return;
    try {
      comparison_.compare(plan);
    } catch (const Error& error) {
      last_error_ = {error.code(), error.what()};
      throw;
    }
  }

  void redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                    RankTrace* trace) {
    Hasher hasher;
    hasher.add(std::string_view("redistribute")).add(environment_.rank);
    hash(hash(hash(hasher, in.layout), out.layout), options.cost);
    if (!in.layout.mesh.contains(environment_.rank) && !out.layout.mesh.contains(environment_.rank)) return;
    hasher.add(static_cast<int>(options.objective)).add(options.max_memory_factor);
    hasher.add(options.travel_dtype ? name(*options.travel_dtype) : std::string_view())
        .add(static_cast<int>(options.partial_rule));
    const Plan& plan = plans_.get(hasher.digest(), [&] {
      return lower(plan_redistribution(in.layout, out.layout, options), environment_.rank, device_->target());
    });
    const Bindings bindings = {{kRedistributeInput, in.data, in.size_bytes},
                               {kRedistributeOutput, out.data, out.size_bytes}};
    execute(plan, *device_, bindings, trace);
  }

  const JobEnvironment environment_;
  std::shared_ptr<RendezvousClient> client_;
  GroupPlanComparison comparison_;
  std::set<Digest> compared_;  // plans
  std::optional<std::pair<ExitCode, std::string>> last_error_;
  PlanCache plans_;
  std::optional<JoinedDevice> device_;
  const int exceptions_ = std::uncaught_exceptions();
};

Job::Job(std::size_t most_plans) : impl_(std::make_unique<Impl>(most_plans)) {}
Job::~Job() = default;

Rank Job::rank() const { return impl_->environment_.rank; }
std::int32_t Job::world_size() const { return impl_->environment_.world_size; }
std::int32_t Job::local_rank() const { return impl_->environment_.local_rank; }
Device& Job::device() { return *impl_->device_; }
bool Job::host_memory() const { return impl_->device_->host_memory(); }
const Target& Job::target() const { return impl_->device_->target(); }
PlanCache& Job::plans() { return impl_->plans_; }
RendezvousClient& Job::rendezvous() { return *impl_->client_; }
void Job::barrier(const std::string& name) { impl_->client_->barrier(name); }
void Job::redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                       RankTrace* trace) {
  impl_->redistribute(in, out, options, trace);
}

}  // namespace cp::runtime
