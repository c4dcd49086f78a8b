#include "runtime/gloo/gloo_device.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>

#include <boost/version.hpp>
#include <gloo/config.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <google/protobuf/stubs/common.h>

#include "runtime/begun_collectives.h"
#include "runtime/gloo/gloo_communicator.h"
#include "runtime/gloo/gloo_error.h"
#include "runtime/gloo/host_streams.h"
#include "runtime/gloo/sealed_connect.h"
#include "runtime/gloo/sealed_context.h"
#include "runtime/rendezvous/endpoint.h"
#include "runtime/step_times.h"
#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/bindings.h"
#include "shared/plan/canonical.h"
#include "shared/plan/kept_plans.h"
#include "shared/plan/lane_arenas.h"
#include "shared/plan/lanes.h"
#include "shared/plan/rebindable_memory.h"

namespace cp::runtime {
namespace {

// Gloo writes to connections without MSG_NOSIGNAL, so that a write to a closed one would end the process.
void ignore_broken_pipes() {
  struct sigaction now = {};
  sigaction(SIGPIPE, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::string address_of(const std::string& hostname) {
  try {
    return own_address(hostname);
  } catch (const RendezvousError& error) {
    throw InvalidInput(str("peers cannot connect to this rank: ", error.what(),
                           "; use an address of this machine, for example 127.0.0.1"));
  }
}

}  // namespace

std::map<std::string, std::string> gloo_library_versions() {
  return {{"gloo", str(GLOO_VERSION_MAJOR, ".", GLOO_VERSION_MINOR, ".", GLOO_VERSION_PATCH)},
          {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)},
          {"boost", str(BOOST_VERSION / 100000, ".", BOOST_VERSION / 100 % 1000, ".", BOOST_VERSION % 100)}};
}

class GlooDevice::Impl {
 public:
  explicit Impl(GlooOptions options)
      : options_(std::move(options)),
        sealed_{.token = options_.token,
                .job_id = options_.job_id,
                .address = address_of(options_.hostname),
                .timeout = options_.timeout,
                .abort = aborted_.get_token()},
        transport_(make_gloo_thread()),
        store_(options_.store ? options_.store
                              : std::make_shared<gloo::rendezvous::FileStore>(options_.store_directory)),
        streams_([this] { abort_communicators(); }) {
    ignore_broken_pipes();
  }

  ~Impl() {
    if (strangers_ > told_strangers_ && options_.on_note)
      options_.on_note(str("in all, ", strangers_, " connections to rank ", options_.rank,
                           " did not prove the job's token; they were refused"));
  }

  Rank rank() const { return options_.rank; }

  void prepare(const Plan& plan, const Bindings& bindings) {
    streams_.synchronize();
    times_.forget();
    used_ = nullptr;
    std::unique_ptr<Prepared>& place = prepared_.first();
    std::optional<HostMemory> before;
    if (place != nullptr) before = place->memory.take();
    place.reset();
    place = make_ready(plan, 0, HostMemory(plan, bindings, std::move(before)));
    used_ = place.get();
  }

  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
    std::unique_ptr<Prepared> made = make_ready(plan, lane, HostMemory(plan, bindings, arenas_.of(lane)));
    share(lane, made->memory.memory().arena());
    lanes_.keep(plan, lane);
    return prepared_.add(std::move(made));
  }

  void use(PreparedId id, const Bindings& changed) {
    Prepared& next = prepared_.at(id);
    next.memory.bind(changed);
    used_ = &next;
  }

  // After an error other streams may still be in the middle of their work.
  void release(PreparedId id) {
    const Prepared& released = prepared_.at(id);
    if (options_.traces || aborted_.stop_requested() || streams_.has_failed()) streams_.drain();
    if (options_.traces) times_.settle();
    lanes_.release(*released.plan, released.lane);
    if (used_ == &released) used_ = nullptr;
    prepared_.remove(id);
  }

  void launch(const StepRef& ref, std::int64_t iteration) {
    const StreamId stream = device_stream(ref.step->stream);
    Member* member = nullptr;
    if (const auto* collective = std::get_if<Collective>(&ref.step->work))
      member = used_->members[static_cast<std::size_t>(group_of(*collective))];
    RebindableMemory::Version& version = used_->memory.current();
    ++version.under_way;
    streams_.enqueue(stream, {.device = this,
                              .prepared = used_,
                              .version = &version,
                              .step = ref.step,
                              .id = ref.id,
                              .stream = stream,
                              .member = member,
                              .iteration = iteration,
                              .records = records_[static_cast<std::size_t>(stream)].get(),
                              .times = &times_.stream(stream)});
  }

  EventId record(StreamId stream) { return streams_.record(device_stream(stream)); }
  void wait(StreamId stream, EventId event) { streams_.wait(device_stream(stream), event); }
  void begin_run(std::span<const EventId> events) {
    if (const EventId before = lanes_.last_end(used_->lane); before >= 0) wait(0, before);
    for (const EventId event : events) wait(0, event);
  }
  void end_run(EventId end) { lanes_.last_end(used_->lane) = end; }
  bool has_happened(EventId event) { return streams_.has_happened(event); }
  void await(EventId event) { streams_.await(event); }
  void synchronize() { streams_.synchronize(); }

  // The bytes of the plan's buffer, for a copy of `host_bytes` bytes to or from the host. `what` is the
  // caller's name, for messages.
  std::span<std::byte> bytes(const char* what, BufferId buffer, std::size_t host_bytes) const {
    CP_INVARIANT(used_ != nullptr, "no plan is prepared");
    check_host_copy(*used_->plan, what, buffer, host_bytes);
    return used_->memory.memory().bytes(buffer);
  }

  DeviceTimes take_times() { return times_.take(); }
  DeviceActivity activity() const { return {kernels_.load() > 0, arrived_->load()}; }

  std::vector<OpRecord> take_observed() {
    std::vector<OpRecord> all;
    for (const auto& records : records_) {
      std::move(records->begin(), records->end(), std::back_inserter(all));
      records->clear();
    }
    for (auto& [name, member] : communicators_) member.begun.reset_sequence();
    return all;
  }

  void abort() {
    aborted_.request_stop();
    abort_communicators();
  }

  void abort_communicators() {
    const std::lock_guard lock(communicators_mutex_);
    for (auto& [text, member] : communicators_) member.communicator->abort();
  }

 private:
  struct Member {
    std::unique_ptr<GlooCommunicator> communicator;
    BegunCollectives begun;
  };

  // A plan that is ready to run.
  struct Prepared {
    const Plan* plan = nullptr;
    LaneId lane = 0;
    RebindableMemory memory;
    std::vector<StreamId> streams;  // of the device, by the plan's StreamId
    std::vector<Member*> members;   // by GroupId
    std::vector<Digest> digests;    // of collectives, by StepId
  };

  // A step in one of its iterations, as a stream's thread runs it.
  struct Launch {
    Impl* device = nullptr;
    const Prepared* prepared = nullptr;
    RebindableMemory::Version* version = nullptr;
    const Step* step = nullptr;
    StepId id = 0;
    StreamId stream = 0;       // of the device
    Member* member = nullptr;  // of a collective
    std::int64_t iteration = 0;
    std::vector<OpRecord>* records = nullptr;
    StepTimes::Stream* times = nullptr;

    void operator()() const { device->run(*this); }
  };

  // Makes the count one more as long as the object exists.
  class Counted {
   public:
    explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
    ~Counted() { --count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    std::atomic<int>& count_;
  };

  std::int64_t now_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_)
        .count();
  }

  std::unique_ptr<Prepared> make_ready(const Plan& plan, LaneId lane, HostMemory memory) {
    std::vector<StreamId> streams = lanes_.streams_for(plan, lane);
    // Plans of the lane share communicators, and their staging memory may grow below.
    if (const EventId last = lanes_.last_end(lane); last >= 0) streams_.await(last);
    auto prepared = std::make_unique<Prepared>(Prepared{&plan,
                                                        lane,
                                                        RebindableMemory(plan, std::move(memory)),
                                                        std::move(streams),
                                                        {},
                                                        collective_digests(plan)});
    streams_.require(lanes_.streams());
    times_.require(lanes_.streams(), lane);
    while (records_.size() < lanes_.streams()) records_.push_back(std::make_unique<std::vector<OpRecord>>());
    prepared->members = connect(plan.groups);
    for (const StepRef& ref : steps_of(plan)) {
      if (const auto* collective = std::get_if<Collective>(&ref.step->work))
        prepared->members[static_cast<std::size_t>(group_of(*collective))]->communicator->reserve(
            plan, *collective);
    }
    return prepared;
  }

  // Makes the arena that of the lane's plans, if it is greater than theirs. None of them may run.
  void share(LaneId lane, const std::shared_ptr<HostArena>& arena) {
    if (!arenas_.offer(lane, arena)) return;
    prepared_.for_each_in(lane, [&](Prepared& kept) { kept.memory.move_to(arena); });
  }

  StreamId device_stream(StreamId stream) const {
    CP_INVARIANT(used_ != nullptr, "no plan is prepared");
    return used_->streams.at(static_cast<std::size_t>(stream));
  }

  // Groups connect in the same order on all ranks, that of their names. Connecting blocks, so two ranks that
  // share two groups and began with different ones would wait for one another.
  std::vector<Member*> connect(const std::vector<Group>& groups) {
    std::map<std::string, const Group*> missing;
    for (const Group& group : groups) {
      if (!communicators_.contains(canonical_name(group))) missing.emplace(canonical_name(group), &group);
    }
    for (const auto& [text, group] : missing) connect(text, *group);
    std::vector<Member*> members;
    members.reserve(groups.size());
    for (const Group& group : groups) members.push_back(&communicators_.at(canonical_name(group)));
    return members;
  }

  void connect(const std::string& text, const Group& group) {
    const auto self = std::find(group.ranks.begin(), group.ranks.end(), options_.rank);
    if (self == group.ranks.end())
      throw InvalidInput(str("rank ", options_.rank, " is not a member of group ", text));
    const auto index = static_cast<std::int32_t>(self - group.ranks.begin());
    gloo::rendezvous::PrefixStore store(text, *store_);
    try {
      SealedSockets connected = connect_sealed(group, index, store, sealed_);
      note(text, connected.strangers);
      std::shared_ptr<PassedPayloads> passed;
      if (options_.checksums != Checksums::off) passed = std::make_shared<PassedPayloads>(group.ranks.size());
      auto communicator = std::make_unique<GlooCommunicator>(
          group, index,
          make_gloo_context(transport_, index, std::move(connected.sockets),
                            options_.wait_timeout.value_or(options_.timeout), arrived_, passed),
          options_.checksums, passed);
      if (options_.on_connected) options_.on_connected(group);
      const std::lock_guard lock(communicators_mutex_);
      communicators_[text].communicator = std::move(communicator);
    } catch (const gloo::Exception& error) {
      throw_gloo(error, cannot_connect(text), connecting(text));
    } catch (const gloo::EnforceNotMet& error) {
      throw_gloo(error, cannot_connect(text), connecting(text));
    }
  }

  void note(const std::string& group, const Strangers& strangers) {
    strangers_ += strangers.count;
    if (strangers.count == 0 || told_strangers_ > 0 || !options_.on_note) return;
    told_strangers_ = strangers_;
    options_.on_note(str("while group ", group, " connected, ", strangers.count,
                         strangers.count == 1 ? " connection" : " connections", " to rank ", options_.rank,
                         " at ", strangers.listener, ", the first from ", strangers.first,
                         ", did not prove the job's token; they were refused, and the job goes on"));
  }

  std::string cannot_connect(const std::string& group) const {
    return str("rank ", options_.rank, " cannot connect group ", group);
  }
  ErrorFacts connecting(const std::string& group) const {
    return {.operation = "connect", .group = group, .rank = options_.rank};
  }

  // On the stream's thread.
  void run(const Launch& launch) {
    const std::int64_t begin_ns = options_.traces ? now_ns() : 0;
    if (launch.member == nullptr) {
      const Counted running(kernels_);
      run_kernel(std::get<Kernel>(launch.step->work), launch.version->memory, launch.iteration);
    } else {
      run_collective(launch);
    }
    if (options_.traces) launch.times->add(*launch.step, begin_ns, now_ns());
    --launch.version->under_way;
  }

  // An error of the collective that is under way.
  ErrorFacts about(const Launch& launch, const Collective& collective, std::int64_t sequence) const {
    return {.operation = std::string(operation_name(collective)),
            .group = canonical_name(launch.member->communicator->group()),
            .sequence = sequence,
            .rank = options_.rank,
            .step = launch.id};
  }

  void run_collective(const Launch& launch) {
    Member& member = *launch.member;
    const Collective& collective = std::get<Collective>(launch.step->work);
    const auto [number, sequence, digest] =
        member.begun.begin(launch.prepared->digests.at(static_cast<std::size_t>(launch.id)));
    const CollectiveBegin begin{
        *launch.prepared->plan, collective, member.communicator->group(), number, launch.id, digest,
        launch.stream};
    if (options_.on_collective) options_.on_collective(begin);
    const auto what = [&, sequence = sequence] {
      return str("rank ", options_.rank, ": ", operation_name(collective), " #", sequence, " on ",
                 canonical_name(member.communicator->group()));
    };
    try {
      OpRecord record =
          member.communicator->run(collective, launch.version->memory, launch.iteration, sequence, digest);
      record.sequence = sequence;
      record.stream = stream_in_traces(launch.prepared->lane, launch.step->stream);
      if (options_.on_collective_end) options_.on_collective_end({begin, &record});
      if (options_.traces) launch.records->push_back(std::move(record));
    } catch (const PayloadSizeError& error) {
      refuse_other_size(error, member, about(launch, collective, sequence), what());
    } catch (const gloo::Exception& error) {
      throw_gloo(error, what(), about(launch, collective, sequence));
    } catch (const gloo::EnforceNotMet& error) {
      throw_gloo(error, what(), about(launch, collective, sequence));
    }
  }

  // One of the two ranks runs another plan than the rest of the group. Which one it is cannot be told from
  // the message of two ranks, so both are culprits.
  [[noreturn]] void refuse_other_size(const PayloadSizeError& error, const Member& member, ErrorFacts facts,
                                      const std::string& what) const {
    const Rank sender = member.communicator->group().ranks.at(static_cast<std::size_t>(error.sender));
    facts.culprits = {std::min(sender, options_.rank), std::max(sender, options_.rank)};
    facts.is_tie = true;
    facts.sender = sender, facts.receiver = options_.rank;
    throw CollectiveMismatch(str(what, ": rank ", sender, " sent a message of ", error.sent_bytes,
                                 " bytes, but rank ", options_.rank, " expected ", error.expected_bytes,
                                 "; the two run different plans, or the same operations in different orders"),
                             std::move(facts));
  }

  GlooOptions options_;
  std::stop_source aborted_;
  const SealedOptions sealed_;
  std::int64_t strangers_ = 0, told_strangers_ = 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::shared_ptr<gloo::transport::Device> transport_;
  std::shared_ptr<gloo::rendezvous::Store> store_;
  Lanes lanes_;
  Prepared* used_ = nullptr;  // the plan in use
  KeptPlans<Prepared> prepared_;
  LaneArenas<HostArena> arenas_;  // of plans that are kept
  std::atomic<int> kernels_{0};   // that run
  const ArrivedBytes arrived_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::mutex communicators_mutex_;
  std::map<std::string, Member> communicators_;                  // by name and ranks of the group
  std::vector<std::unique_ptr<std::vector<OpRecord>>> records_;  // by stream, each written by its thread
  StepTimes times_;                                              // the same
  HostStreams<Launch> streams_;                                  // last: its threads use all of the above
};

GlooDevice::GlooDevice(GlooOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
GlooDevice::~GlooDevice() = default;

Rank GlooDevice::rank() const { return impl_->rank(); }
const Target& GlooDevice::target() const { return host_target(); }
void GlooDevice::prepare(const Plan& plan, const Bindings& bindings) {
  refuse_foreign_plan(plan, *this, "gloo");
  impl_->prepare(plan, bindings);
}
void GlooDevice::launch(const StepRef& step, std::int64_t iteration) { impl_->launch(step, iteration); }
EventId GlooDevice::record(StreamId stream) { return impl_->record(stream); }
void GlooDevice::wait(StreamId stream, EventId event) { impl_->wait(stream, event); }
void GlooDevice::synchronize() { impl_->synchronize(); }
void GlooDevice::upload(BufferId buffer, std::span<const std::byte> host) {
  std::ranges::copy(host, impl_->bytes("upload", buffer, host.size()).begin());
}
void GlooDevice::download(BufferId buffer, std::span<std::byte> host) {
  std::ranges::copy(impl_->bytes("download", buffer, host.size()), host.begin());
}
PreparedId GlooDevice::keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
  refuse_foreign_plan(plan, *this, "gloo");
  return impl_->keep(plan, bindings, lane);
}
void GlooDevice::use(PreparedId prepared, const Bindings& changed) { impl_->use(prepared, changed); }
void GlooDevice::release(PreparedId prepared) { impl_->release(prepared); }
bool GlooDevice::has_happened(EventId event) { return impl_->has_happened(event); }
void GlooDevice::await(EventId event) { impl_->await(event); }
void GlooDevice::begin_run(CallerStream caller) {
  refuse_callers_stream(caller, *this, "gloo");
  impl_->begin_run({});
}
void GlooDevice::begin_run_after(std::span<const EventId> events) { impl_->begin_run(events); }
void GlooDevice::end_run(CallerStream, EventId end) { impl_->end_run(end); }
std::vector<OpRecord> GlooDevice::take_observed() { return impl_->take_observed(); }
DeviceTimes GlooDevice::take_times() { return impl_->take_times(); }
DeviceActivity GlooDevice::activity() const { return impl_->activity(); }
void GlooDevice::abort() { impl_->abort(); }

}  // namespace cp::runtime
