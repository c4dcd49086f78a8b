#include "runtime/gloo/gloo_device.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
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
    plan_ = &plan;
    std::optional<HostMemory> before = std::exchange(memory_, std::nullopt);
    memory_.emplace(plan, bindings, std::move(before));
    streams_.require(plan.streams.size());
    observed_.resize(std::max(observed_.size(), plan.streams.size()));
    times_.use(plan.streams.size());
    digests_ = collective_digests(plan);
    connect(plan.groups);
    for (const StepRef& ref : steps_of(plan)) {
      if (const auto* collective = std::get_if<Collective>(&ref.step->work))
        members_[static_cast<std::size_t>(group_of(*collective))]->communicator->reserve(plan, *collective);
    }
  }

  void launch(const StepRef& ref, std::int64_t iteration) {
    Member* member = nullptr;
    if (const auto* collective = std::get_if<Collective>(&ref.step->work))
      member = members_[static_cast<std::size_t>(group_of(*collective))];
    streams_.enqueue(ref.step->stream, [this, &step = *ref.step, id = ref.id, member, iteration] {
      const std::int64_t begin_ns = now_ns();
      if (member == nullptr) {
        const Counted running(kernels_);
        run_kernel(std::get<Kernel>(step.work), *memory_, iteration);
      } else {
        run_collective(*member, step, id, iteration);
      }
      times_.add(step, begin_ns, now_ns());
    });
  }

  EventId record(StreamId stream) { return streams_.record(stream); }
  void wait(StreamId stream, EventId event) { streams_.wait(stream, event); }
  void synchronize() { streams_.synchronize(); }

  // The bytes of the plan's buffer, for a copy of `host_bytes` bytes to or from the host. `what` is the
  // caller's name, for messages.
  std::span<std::byte> bytes(const char* what, BufferId buffer, std::size_t host_bytes) const {
    CP_INVARIANT(memory_.has_value(), "no plan is prepared");
    check_host_copy(*plan_, what, buffer, host_bytes);
    return memory_->bytes(buffer);
  }

  DeviceTimes take_times() { return times_.take(); }
  DeviceActivity activity() const { return {kernels_.load() > 0, arrived_->load()}; }

  std::vector<OpRecord> take_observed() {
    std::vector<OpRecord> all;
    for (std::vector<OpRecord>& records : observed_) {
      std::move(records.begin(), records.end(), std::back_inserter(all));
      records.clear();
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

  // Groups connect in the same order on all ranks, that of their names. Connecting blocks, so two ranks that
  // share two groups and began with different ones would wait for one another.
  void connect(const std::vector<Group>& groups) {
    std::map<std::string, const Group*> missing;
    for (const Group& group : groups) {
      if (!communicators_.contains(canonical_name(group))) missing.emplace(canonical_name(group), &group);
    }
    for (const auto& [text, group] : missing) connect(text, *group);
    members_.clear();
    for (const Group& group : groups) members_.push_back(&communicators_.at(canonical_name(group)));
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

  // The facts of an error in the collective that is under way.
  ErrorFacts about(StepId id, const Collective& collective, std::int64_t sequence) const {
    return {.operation = std::string(operation_name(collective)),
            .group = canonical_name(
                members_[static_cast<std::size_t>(group_of(collective))]->communicator->group()),
            .sequence = sequence,
            .rank = options_.rank,
            .step = id};
  }

  void run_collective(Member& member, const Step& step, StepId id, std::int64_t iteration) {
    const Collective& collective = std::get<Collective>(step.work);
    const StreamId stream = step.stream;
    const auto [number, sequence, digest] = member.begun.begin(digests_.at(static_cast<std::size_t>(id)));
    const CollectiveBegin begin{*plan_, collective, member.communicator->group(), number, id, digest, stream};
    if (options_.on_collective) options_.on_collective(begin);
    const auto what = [&, sequence = sequence] {
      return str("rank ", options_.rank, ": ", operation_name(collective), " #", sequence, " on ",
                 canonical_name(member.communicator->group()));
    };
    try {
      OpRecord record = member.communicator->run(collective, *memory_, iteration, sequence, digest);
      record.sequence = sequence;
      record.stream = stream;
      if (options_.on_collective_end) options_.on_collective_end({begin, &record});
      observed_[static_cast<std::size_t>(stream)].push_back(std::move(record));
    } catch (const PayloadSizeError& error) {
      refuse_other_size(error, member, about(id, collective, sequence), what());
    } catch (const gloo::Exception& error) {
      throw_gloo(error, what(), about(id, collective, sequence));
    } catch (const gloo::EnforceNotMet& error) {
      throw_gloo(error, what(), about(id, collective, sequence));
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
  const Plan* plan_ = nullptr;
  std::vector<Digest> digests_;  // of the prepared plan's collectives, by StepId
  std::optional<HostMemory> memory_;
  std::atomic<int> kernels_{0};  // that run
  const ArrivedBytes arrived_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::mutex communicators_mutex_;
  std::map<std::string, Member> communicators_;  // by canonical name of the group
  std::vector<Member*> members_;                 // of the prepared plan, by GroupId
  std::vector<std::vector<OpRecord>> observed_;  // by stream, each written by its thread
  StepTimes times_;                              // the same
  HostStreams streams_;                          // last: its threads use all of the above
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
std::vector<OpRecord> GlooDevice::take_observed() { return impl_->take_observed(); }
DeviceTimes GlooDevice::take_times() { return impl_->take_times(); }
DeviceActivity GlooDevice::activity() const { return impl_->activity(); }
void GlooDevice::abort() { impl_->abort(); }

}  // namespace cp::runtime
