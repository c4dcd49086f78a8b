#include "runtime/joined_device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#ifdef CP_HAVE_GLOO
#include "runtime/gloo/gloo_device.h"
#include "runtime/gloo/rendezvous_store.h"
#endif
#include "shared/plan/canonical.h"
#include "shared/plan/operations.h"

namespace cp::runtime {
namespace {

// How long a broken connection waits for the server to say who failed.
constexpr std::chrono::milliseconds kCauseDelay{1'000};
constexpr std::chrono::milliseconds kAnswer{1'000};  // of the server, while the watchdog asks

#ifdef CP_HAVE_GLOO
// A wait ends when the server finds that a rank is lost, or that none can go on.
constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};
#endif

}  // namespace

std::map<std::string, std::string> library_versions(Backend backend) {
#ifdef CP_HAVE_GLOO
  if (backend == Backend::gloo) return gloo_library_versions();
#endif
#ifdef CP_HAVE_NCCL
  if (backend == Backend::nccl) return gpu_library_versions();
#endif
  return {};
}

void require_backend(Backend backend) {
#ifndef CP_HAVE_GLOO
  if (backend == Backend::gloo) {
    throw InvalidInput(
        "this build has no Gloo; use --backend nccl, or install libgloo-dev and build again "
        "(cmake --preset release)");
  }
#endif
#ifndef CP_HAVE_NCCL
  if (backend == Backend::nccl) {
    throw InvalidInput(
        "this build has no CUDA and NCCL; use --backend gloo, or build where the CUDA toolkit and NCCL are "
        "(cmake --preset cuda says what it misses)");
  }
#endif
  static_cast<void>(backend);  // of a build that has all
}

bool devices_left_behind() {
#ifdef CP_HAVE_NCCL
  return left_behind();
#else
  return false;
#endif
}

JoinedDevice::JoinedDevice(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client,
                           JoinedDeviceOptions options)
    : timeout_(job.timeout),
      name_(options.name),
      client_(std::move(client)),
      page_(job.progress),
      target_(&host_target()) {
  require_backend(job.backend);
  options.on_collective = [this, also = std::move(options.on_collective)](const CollectiveBegin& begin) {
    tell(begin);
    if (also) also(begin);
  };
  options.on_collective_end = [this, also = std::move(options.on_collective_end)](const CollectiveEnd& end) {
    tell_end(end.collective.stream);
    if (also) also(end);
  };
  device_ =
      job.backend == Backend::gloo ? make_gloo(job, std::move(options)) : make_nccl(job, std::move(options));
  client_->on_failure([this](const Failure&) { device_->abort(); });
  client_->set_activity([this] { return activity(); });
}

#ifdef CP_HAVE_GLOO
std::unique_ptr<ProcessDevice> JoinedDevice::make_gloo(const JobEnvironment& job,
                                                       JoinedDeviceOptions options) {
  GlooOptions gloo;
  gloo.rank = job.rank;
  const std::string prefix = "gloo/" + options.name;
  gloo.store = std::make_shared<RendezvousStore>(client_, prefix);
  gloo.on_connected = [client = client_, prefix](const Group& group) {
    client->free_keys(str(prefix, canonical_name(group), "/"), group.ranks.size());
  };
  gloo.token = job.token, gloo.job_id = job.job_id;
  gloo.hostname = job.interface;
  gloo.timeout = job.timeout;
  gloo.wait_timeout = kAsLongAsItTakes;
  gloo.checksums = options.checksums;
  gloo.on_collective = std::move(options.on_collective);
  gloo.on_collective_end = std::move(options.on_collective_end);
  gloo.on_note = [](const std::string& note) { std::fputs(str("note: ", note, "\n").c_str(), stderr); };
  return std::make_unique<GlooDevice>(std::move(gloo));
}
#else
std::unique_ptr<ProcessDevice> JoinedDevice::make_gloo(const JobEnvironment&, JoinedDeviceOptions) {
  return {};
}
#endif

#ifdef CP_HAVE_NCCL
std::unique_ptr<ProcessDevice> JoinedDevice::make_nccl(const JobEnvironment& job,
                                                       JoinedDeviceOptions options) {
  if (options.checksums != Checksums::off) {
    throw InvalidInput(
        "the nccl backend has no checksums of payloads, which its kernels send and reduce on the GPU; use "
        "gloo, or compare results");
  }
  const RankGpu gpu = options.gpu ? *options.gpu : rank_gpu(job, *client_);
  if (gpu.targets_differ.empty()) target_ = gpu.target;
  pools_.emplace(gpu.here, job.allow_shared_gpu);
  NcclOptions nccl;
  nccl.rank = job.rank, nccl.world_size = job.world_size;
  nccl.cuda_device = gpu.cuda_device;
  nccl.timeout = job.timeout;
  nccl.communicators = options.communicators;
  nccl.on_collective = std::move(options.on_collective);
  nccl.on_collective_end = std::move(options.on_collective_end);
  nccl.may_wait = [this](const CollectiveBegin& begin) { return somebody_may_come(begin); };
  if (page_) page_->set_look_every(kNcclLookPeriod);
  const std::string prefix = "nccl/" + options.name;
  nccl.share = [client = client_, prefix](const std::string& key, const std::optional<std::string>& id) {
    if (!id) return client->get(prefix + key);
    client->set(prefix + key, *id);
    return *id;
  };
  if (options.every_rank_prepares) {
    nccl.all_gather = [client = client_, prefix](const std::string& key, const std::string& own) {
      return client->all_gather(prefix + key, own);
    };
  }
  return std::make_unique<NcclDevice>(std::move(nccl));
}
#else
std::unique_ptr<ProcessDevice> JoinedDevice::make_nccl(const JobEnvironment&, JoinedDeviceOptions) {
  return {};
}
#endif

JoinedDevice::~JoinedDevice() {
  client_->set_activity({});
  client_->on_failure({});
  device_.reset();
  for (const int track : tracks_) page_->release(track);
}

void JoinedDevice::prepare(const Plan& plan, const Bindings& bindings) {
  device_->take_observed();  // of a program that wants no traces
  naming_the_cause([&] {
    if (pools_) pools_->add(plan.groups, shared_memory_bytes());
    device_->prepare(plan, bindings);
  });
  // Nothing of an earlier plan runs any more.
  while (page_ && tracks_.size() < plan.streams.size()) tracks_.push_back(page_->claim());
}

void JoinedDevice::synchronize() {
  naming_the_cause([&] { device_->synchronize(); });
}

void JoinedDevice::tell(const CollectiveBegin& begin) {
  const std::lock_guard lock(mutex_);
  Progress& latest = latest_[canonical_name(begin.group)];
  latest = {name_ + canonical_name(begin.group), begin.number, std::string(operation_name(begin.collective)),
            begin.digest, begin.step};
  client_->set_progress(latest.group, latest.sequence, latest.operation, latest.digest, latest.step);
  const auto stream = static_cast<std::size_t>(begin.stream);
  if (stream >= under_way_.size()) under_way_.resize(stream + 1);
  under_way_[stream] = {latest.group, latest.sequence, latest.operation};
  if (page_) page_->begun(track(begin.stream), latest.group, latest.operation, latest.sequence, latest.step);
}

void JoinedDevice::tell_end(StreamId stream) {
  const std::lock_guard lock(mutex_);
  under_way_[static_cast<std::size_t>(stream)].reset();
  if (page_) page_->ended(track(stream));
}

// It waits where the program does, in a call of this object, and the device runs collectives alone.
Activity JoinedDevice::activity() const {
  const DeviceActivity device = device_->activity();
  const std::lock_guard lock(mutex_);
  Activity now{false, {}, device.moved};
  for (const auto& collective : under_way_) {
    if (collective) now.collectives.push_back(*collective);
  }
  now.waits = calls_.load() > 0 && !device.computes && !now.collectives.empty();
  return now;
}

// A member that has not begun the collective, and is there: it computes, or waits in another, which the server would find to be a
// deadlock. Where the server does not answer, the client finds it lost.
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
    if (!error.facts().advice.empty())
      throw;  // what knows a remedy is no consequence of another rank's failure
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

// A broken connection and a message of another size reach all members of a group soon; what they tell the server then may show which of
// them does something else than the others.
std::optional<Failure> JoinedDevice::cause_of_the_end() const {
  client_->tell_progress();
  const auto until = std::chrono::steady_clock::now() + kCauseDelay;
  while (!client_->failure() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return client_->failure();
}

// Of the latest collective that this rank has begun on the group; nothing where it has begun none, or the server does not answer.
std::optional<std::string> JoinedDevice::who_is_missing(const std::string& group) const {
  Progress awaited;
  {
    const std::lock_guard lock(mutex_);
    const auto latest = latest_.find(group);
    if (latest == latest_.end()) return std::nullopt;
    awaited = latest->second;
  }
  try {
    return describe_wait(awaited, timeout_, client_->ranks());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace cp::runtime
