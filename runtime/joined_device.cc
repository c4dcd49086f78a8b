#include "runtime/joined_device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "shared/base/digest.h"
#include "shared/plan/canonical.h"
#include "shared/plan/operations.h"

namespace cp::runtime {
namespace {

// How long an error of a broken connection waits for the server to say which rank failed first. Chosen: the
// server settles on a cause after 300 ms (kSettleTime in rendezvous/roster.cc). A shorter wait makes errors
// name a victim more often.
constexpr std::chrono::milliseconds kCauseDelay{1'000};
// How long the watchdog waits for the server's answer (chosen).
constexpr std::chrono::milliseconds kAnswer{1'000};
// A year, which stands for ever: a rank may take long to prepare, and a lost one is found by the server.
constexpr std::chrono::hours kUntilTheServerEndsIt{24 * 365};

}  // namespace

bool devices_left_behind() {
  return std::ranges::any_of(backends(), [](const Backend& backend) {
    return backend.left_behind != nullptr && backend.left_behind();
  });
}

JoinedDevice::JoinedDevice(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client,
                           JoinedDeviceOptions options)
    : backend_(require_backend(job.backend)),
      timeout_(job.timeout),
      name_(options.name),
      keeps_observed_(options.keeps_observed),
      client_(std::move(client)),
      page_(job.progress) {
  DeviceRequest request{.job = job, .client = client_, .name = std::move(options.name)};
  request.on_collective = [this, also = std::move(options.on_collective)](const CollectiveBegin& begin) {
    tell(begin);
    if (also) also(begin);
  };
  request.on_collective_end = [this, also = std::move(options.on_collective_end)](const CollectiveEnd& end) {
    tell_end(end.collective.stream);
    if (also) also(end);
  };
  request.checksums = options.checksums;
  request.every_rank_prepares = options.every_rank_prepares;
  request.traces = options.traces;
  request.may_wait = [this](const CollectiveBegin& begin) { return somebody_may_come(begin); };
  request.agree = [this](const Group& group, std::int64_t number, const std::string& own) {
    return meet(group, number, own);
  };
  request.own = options.own.get();
  device_ = backend_.make(std::move(request));
  forward_to(*device_);
  client_->on_failure([this](const Failure&) { device_->abort(); });
  client_->set_activity([this] { return activity(); });
}

JoinedDevice::~JoinedDevice() {
  client_->set_activity({});
  client_->on_failure({});
  device_.reset();
  for (const int track : tracks_) page_->release(track);
}

void JoinedDevice::prepare(const Plan& plan, const Bindings& bindings) {
  naming_the_cause([&] { device_->synchronize(); });  // kept plans may be running
  if (!keeps_observed_) device_->take_observed();
  naming_the_cause([&] { device_->prepare(plan, bindings); });
}

PreparedId JoinedDevice::keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
  PreparedId id = 0;
  naming_the_cause([&] { id = device_->keep(plan, bindings, lane); });
  return id;
}

void JoinedDevice::synchronize() {
  naming_the_cause([&] { device_->synchronize(); });
}

void JoinedDevice::await(EventId event) {
  naming_the_cause([&] { device_->await(event); });
}

void JoinedDevice::tell(const CollectiveBegin& begin) {
  const std::lock_guard lock(mutex_);
  Begun& begun = latest_[canonical_name(begin.group)];
  begun.patience = begin.patience;
  Progress& latest = begun.progress;
  latest = {name_ + canonical_name(begin.group), begin.number, std::string(operation_name(begin.collective)),
            begin.digest, begin.step};
  client_->set_progress(latest.group, latest.sequence, latest.operation, latest.digest, latest.step);
  const auto stream = static_cast<std::size_t>(begin.stream);
  if (stream >= under_way_.size()) under_way_.resize(stream + 1);
  under_way_[stream] = {latest.group, latest.sequence, latest.operation};
  while (page_ && tracks_.size() <= stream) tracks_.push_back(page_->claim());
  if (page_) page_->begun(track(begin.stream), latest.group, latest.operation, latest.sequence, latest.step);
}

void JoinedDevice::tell_end(StreamId stream) {
  const std::lock_guard lock(mutex_);
  under_way_[static_cast<std::size_t>(stream)].reset();
  if (page_) page_->ended(track(stream));
}

// To the server a meeting is a collective of a group of its own, so that it finds ranks that wait for one
// another there, too, and ranks that prepare more plans than others.
std::vector<std::string> JoinedDevice::meet(const Group& group, std::int64_t number, const std::string& own) {
  std::vector<Rank> ascending = group.ranks;
  std::ranges::sort(ascending);
  const std::string name = str(name_, "plans of ", canonical_name(group));
  {
    const std::lock_guard lock(mutex_);
    meeting_ = Activity::Collective{name, number, "prepare"};
  }
  client_->set_progress(name, number, "prepare", {});
  std::vector<std::string> told;
  try {
    // The name of a large group is longer than keys may be.
    told = client_->all_gather(ascending, str("plans/", to_string(Hasher().add(name).digest())), own,
                               kUntilTheServerEndsIt);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    meeting_.reset();
    throw;
  }
  const std::lock_guard lock(mutex_);
  meeting_.reset();
  std::vector<std::string> in_order;
  for (const Rank rank : group.ranks)
    in_order.push_back(
        told.at(static_cast<std::size_t>(std::ranges::find(ascending, rank) - ascending.begin())));
  return in_order;
}

// It waits where the program does, in a call of this object, and the device runs collectives alone.
Activity JoinedDevice::activity() const {
  const DeviceActivity device = device_->activity();
  const std::lock_guard lock(mutex_);
  Activity now{false, {}, device.moved};
  for (const auto& collective : under_way_) {
    if (collective) now.collectives.push_back(*collective);
  }
  if (meeting_) now.collectives.push_back(*meeting_);
  now.waits = calls_.load() > 0 && !device.computes && !now.collectives.empty();
  return now;
}

// A member that has not begun the collective, and is there: it computes, or waits in another, which the
// server would find to be a deadlock. Where the server does not answer, the client finds it lost.
bool JoinedDevice::somebody_may_come(const CollectiveBegin& begin) const {
  const std::string group = name_ + canonical_name(begin.group);
  std::vector<RankStatus> ranks;
  try {
    ranks = client_->ranks(kAnswer);
  } catch (const Error&) {
    return !client_->failure();
  }
  return std::ranges::any_of(ranks, [&](const RankStatus& status) {
    if (status.state != RankState::joined ||
        std::ranges::find(begin.group.ranks, status.rank) == begin.group.ranks.end())
      return false;
    const auto latest = status.groups.find(group);
    return latest == status.groups.end() || latest->second.sequence < begin.number;
  });
}

template <class F>
void JoinedDevice::naming_the_cause(const F& f) {
  ++calls_;
  try {
    name_the_cause(f);
  } catch (const Error& error) {
    --calls_;
    last_error_.emplace(error);
    throw;
  }
  --calls_;
}

template <class F>
void JoinedDevice::name_the_cause(const F& f) {
  try {
    f();
  } catch (const PeerLost& error) {
    // What knows a remedy is no consequence of another rank's failure, nor is the loss of this rank's own
    // GPU: the others shall hear of it first.
    if (!error.facts().advice.empty() || error.facts().culprits == std::vector<Rank>{client_->rank()}) throw;
    if (const auto cause = cause_of_the_end()) throw PeerLost(to_string(*cause), facts_of(*cause));
    throw;
  } catch (const CollectiveMismatch&) {
    // It is between two ranks; the server can say which of them differs from the others.
    const auto cause = cause_of_the_end();
    if (cause && cause->kind == ErrorKind::collective_mismatch)
      throw CollectiveMismatch(to_string(*cause), facts_of(*cause));
    if (cause) throw PeerLost(to_string(*cause), facts_of(*cause));
    throw;
  } catch (const Timeout& error) {
    if (const auto cause = client_->failure()) throw PeerLost(to_string(*cause), facts_of(*cause));
    if (const auto text = who_is_missing(error.facts().group)) throw Timeout(*text, error.facts());
    throw;
  }
}

// A broken connection and a message of another size reach all members of a group soon; what they tell the
// server then may show which of them does something else than the others.
std::optional<Failure> JoinedDevice::cause_of_the_end() const {
  client_->tell_progress();
  const auto until = std::chrono::steady_clock::now() + kCauseDelay;
  while (!client_->failure() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return client_->failure();
}

// Of the latest collective that this rank has begun on the group; nothing where it has begun none, or the
// server does not answer.
std::optional<std::string> JoinedDevice::who_is_missing(const std::string& group) const {
  Begun awaited;
  {
    const std::lock_guard lock(mutex_);
    const auto latest = latest_.find(group);
    if (latest == latest_.end()) return std::nullopt;
    awaited = latest->second;
  }
  try {
    return describe_wait(awaited.progress, std::max(timeout_, awaited.patience), client_->ranks());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace cp::runtime
