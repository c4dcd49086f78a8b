#include "runtime/nccl/nccl_communicators.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/copy_engine_reach.h"
#include "runtime/errors.h"
#include "runtime/nccl/nccl_error.h"
#include "shared/base/error.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Connecting gets at least this long, even in a job with a shorter timeout: NCCL finds out the topology and
// opens its connections then, which can take seconds. Chosen; it is also the default timeout of a job
// (job_environment.h).
constexpr std::chrono::milliseconds kLeastConnectTimeout{30'000};

std::string encode(const std::map<std::string, Group>& groups) {
  std::string text;
  for (const auto& [name, group] : groups) {
    text += str(group.name.size(), " ", group.name, " ", group.copy_engine ? 1 : 0, " ", group.ranks.size(),
                " ", cp::join(group.ranks, " "), " ");
  }
  return text;
}

void decode(const std::string& text, std::map<std::string, Group>& groups) {
  std::istringstream in(text);
  std::size_t name_size = 0;
  while (in >> name_size) {
    Group group;
    group.name.resize(name_size);
    in.get();
    in.read(group.name.data(), static_cast<std::streamsize>(name_size));
    std::size_t size = 0;
    in >> group.copy_engine >> size;
    group.ranks.resize(size);
    for (Rank& rank : group.ranks) in >> rank;
    CP_INVARIANT(!in.fail(), "groups of another rank: ", text);
    groups.emplace(canonical_name(group), std::move(group));
  }
}

// Enters the handles, and leaves them when it is destroyed. Throws PeerLost if their end has begun.
class Entered {
 public:
  Entered(NcclHandles& handles, const std::string& what, NcclHandles::Call call) : handles_(handles) {
    if (!handles_.enter(call)) throw PeerLost(str(what, ": the communicators were aborted on this side"));
  }
  ~Entered() { handles_.leave(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  NcclHandles& handles_;
};

// NCCL_CTA_POLICY_*, which the headers have since 2.27, and the last one since 2.28.
constexpr int kDefaultPolicy = 0, kEfficiencyPolicy = 1, kZeroPolicy = 2;
#ifdef NCCL_CTA_POLICY_ZERO
static_assert(NCCL_CTA_POLICY_DEFAULT == kDefaultPolicy && NCCL_CTA_POLICY_EFFICIENCY == kEfficiencyPolicy &&
              NCCL_CTA_POLICY_ZERO == kZeroPolicy);
#endif

void check_policy(int policy) {
  if (policy == kDefaultPolicy) return;
  if (policy != kEfficiencyPolicy) {
    throw InvalidInput(
        str("cta_policy ", policy, " is neither ", kDefaultPolicy, " (default) nor ", kEfficiencyPolicy,
            " (efficiency)",
            policy == kZeroPolicy
                ? "; 2 (zero) is that of the groups whose plans promise memory at equal offsets: plan with "
                  "transfers=copy_engine"
                : ""));
  }
  const auto refusal =
      refuse_nccl_option(str("cta_policy ", policy, " (efficiency)"), kNcclCtaPolicySince, nccl_versions());
  if (refusal) throw InvalidInput(*refusal);
}

bool has_failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

}  // namespace

NcclVersions nccl_versions() {
  NcclVersions versions{NCCL_VERSION_CODE, 0};
  static_cast<void>(ncclGetVersion(&versions.loaded));
  return versions;
}

std::vector<std::vector<const Group*>> split_rounds(const std::map<std::string, Group>& groups) {
  std::vector<std::vector<const Group*>> rounds;
  std::vector<const Group*> left;
  for (const auto& [name, group] : groups) left.push_back(&group);
  while (!left.empty()) {
    std::set<Rank> taken;
    std::vector<const Group*> round, later;
    for (const Group* group : left) {
      const bool free = std::ranges::none_of(group->ranks, [&](Rank rank) { return taken.contains(rank); });
      (free ? round : later).push_back(group);
      if (free) taken.insert(group->ranks.begin(), group->ranks.end());
    }
    rounds.push_back(std::move(round));
    left = std::move(later);
  }
  return rounds;
}

NcclCommunicators::NcclCommunicators(const NcclOptions& options, NcclHandles& handles)
    : options_(options),
      handles_(handles),
      pools_(options.here, options.each_is_a_host),
      descriptors_(options.here, options.each_is_a_host) {
  if (options.communicators.cta_policy) check_policy(*options.communicators.cta_policy);
  if (options.communicators.most_kept < 1)
    throw InvalidInput(str("most_kept is ", options.communicators.most_kept, "; use 1 or more"));
}

bool NcclCommunicators::is_member(const Group& group) const {
  return std::ranges::find(group.ranks, options_.rank) != group.ranks.end();
}

void NcclCommunicators::forget(const std::string& name) {
  const auto found = communicators_.find(name);
  if (found == communicators_.end()) return;
  pools_.remove(found->second->group);
  descriptors_.remove(found->second->group);
  communicators_.erase(found);
}

bool NcclCommunicators::forget_oldest(const Groups& but) {
  const NcclCommunicator* oldest = nullptr;
  for (const auto& [name, communicator] : communicators_) {
    if (communicator.use_count() > 1 || but.contains(name)) continue;
    if (oldest == nullptr || communicator->used < oldest->used) oldest = communicator.get();
  }
  if (oldest == nullptr) return false;
  forget(std::string(oldest->name));
  return true;
}

void NcclCommunicators::make_room(const std::vector<Group>& groups, bool may_end) {
  refuse_copy_engines_across(groups, options_.here, options_.each_is_a_host);
  const Groups named = by_name(groups);
  for (const auto& [name, group] : named) {
    const auto known = communicators_.find(name);
    if (known == communicators_.end() || known->second->group.copy_engine == group.copy_engine) continue;
    if (!may_end || known->second.use_count() > 1) {
      throw InvalidInput(str("group ", name, " has a communicator ", group.copy_engine ? "without" : "with",
                             " copy engines, which a plan that is kept or runs needs; release that plan, or "
                             "give the other group another name"));
    }
    forget(name);
  }
  const auto missing = std::ranges::count_if(
      named, [this](const auto& entry) { return !communicators_.contains(entry.first); });
  while (may_end && std::ssize(communicators_) + missing > options_.communicators.most_kept) {
    if (!forget_oldest(named)) break;
  }
  while (true) {
    try {
      pools_.add(groups, shared_memory_bytes());
      return raise_descriptor_limit(descriptors_.add(groups, descriptor_limits()));
    } catch (const InvalidInput&) {
      for (const auto& [name, group] : named) {
        if (!communicators_.contains(name)) pools_.remove(group);
      }
      if (may_end && forget_oldest(named)) continue;
      throw;
    }
  }
}

NcclCommunicators::Connected NcclCommunicators::connect(const std::vector<Group>& groups,
                                                        std::chrono::milliseconds planned,
                                                        NcclAgreement& agreement) {
  Connected connected{{}, planned};
  Groups missing;
  for (const auto& [name, group] : by_name(groups)) {
    if (!is_member(group))
      throw InvalidInput(str("rank ", options_.rank, " is not a member of group ", name));
    const NcclAgreement::Met met = agreement.meet(group, communicators_.contains(name), planned);
    connected.longest = std::max(connected.longest, met.longest);
    if (!met.all_are_connected) communicators_.erase(name);
    if (communicators_.contains(name)) continue;
    if (options_.all_gather) {
      missing.emplace(name, group);
      continue;
    }
    const Attempt attempt = connecting(name);
    const std::int64_t again = made_[name]++;
    ncclComm_t* const parent = connect_parent(
        again == 0 ? str("group ", name) : str("group ", name, " again ", again), group.ranks, attempt);
    split(*parent, 0, &group, attempt);
    handles_.retire(parent);
  }
  if (options_.all_gather) split_from_world(missing);
  ++uses_;
  for (const Group& group : groups) {
    connected.members.push_back(communicators_.at(canonical_name(group)));
    connected.members.back()->used = uses_;
  }
  return connected;
}

void NcclCommunicators::split_from_world(const Groups& own) {
  Groups all;
  for (const std::string& text : options_.all_gather(str("groups ", gathers_++), encode(own)))
    decode(text, all);
  if (all.empty()) return;
  std::vector<Rank> world(static_cast<std::size_t>(options_.world_size));
  std::iota(world.begin(), world.end(), 0);
  if (world_ == nullptr) {
    Attempt attempt = connecting("world");
    attempt.what =
        str("rank ", options_.rank, " cannot connect the world of ranks 0-", options_.world_size - 1);
    world_ = connect_parent("world", world, attempt);
  }
  for (const std::vector<const Group*>& round : split_rounds(all)) {
    const auto mine = std::ranges::find_if(round, [&](const Group* group) {
      return std::ranges::find(group->ranks, options_.rank) != group->ranks.end();
    });
    if (mine == round.end()) {
      split(*world_, NCCL_SPLIT_NOCOLOR, nullptr, connecting("of other ranks"));
    } else {
      split(*world_, static_cast<int>(mine - round.begin()), *mine, connecting(canonical_name(**mine)));
    }
  }
}

ncclComm_t* NcclCommunicators::connect_parent(const std::string& key, const std::vector<Rank>& ranks,
                                              const Attempt& attempt) {
  const auto index = std::ranges::find(ranks, options_.rank) - ranks.begin();
  ncclUniqueId id{};
  std::optional<std::string> own;
  if (index == 0) {
    const Entered entered(handles_, attempt.what, NcclHandles::Call::make);
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) throw_nccl(result, nullptr, attempt.what, attempt.facts);
    own = std::string(id.internal, sizeof id.internal);
  }
  const std::string given = options_.share(key, own);
  CP_INVARIANT(given.size() == sizeof id.internal, "an id of ", given.size(), " bytes");
  std::memcpy(id.internal, given.data(), given.size());

  ncclComm_t* const comm = handles_.add(NcclHandles::Kind::parent);
  ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
  how.blocking = 0;
  how.minCTAs = how.maxCTAs = 1;  // one channel: nothing is ever sent through it
  {
    const Entered entered(handles_, attempt.what, NcclHandles::Call::make);
    const ncclResult_t result =
        ncclCommInitRankConfig(comm, static_cast<int>(ranks.size()), id, static_cast<int>(index), &how);
    if (has_failed(result)) throw_nccl(result, nullptr, attempt.what, attempt.facts);
  }
  await(*comm, attempt.what, attempt.facts);
  return comm;
}

void NcclCommunicators::split(ncclComm_t parent, int color, const Group* group, const Attempt& attempt) {
  ncclComm_t* const comm = handles_.add(NcclHandles::Kind::child);
  ncclConfig_t how = config(group != nullptr && group->copy_engine);
  const int key =
      group == nullptr
          ? 0
          : static_cast<int>(std::ranges::find(group->ranks, options_.rank) - group->ranks.begin());
  {
    const Entered entered(handles_, attempt.what, NcclHandles::Call::make);
    const ncclResult_t result = ncclCommSplit(parent, color, key, comm, &how);
    if (has_failed(result)) throw_nccl(result, parent, attempt.what, attempt.facts);
  }
  await(parent, attempt.what, attempt.facts);
  if (group == nullptr) return handles_.retire(comm);  // the place alone
  const std::string name = canonical_name(*group);
  communicators_[name] = NcclCommunicatorPtr(
      new NcclCommunicator{.group = *group, .name = name, .begun = begun_[name], .comm = comm},
      [&handles = handles_](NcclCommunicator* last) {
        handles.retire(last->comm);
        delete last;
      });
}

void NcclCommunicators::await(ncclComm_t comm, const std::string& what, const ErrorFacts& facts) const {
  const auto timeout = options_.connect_timeout.value_or(std::max(options_.timeout, kLeastConnectTimeout));
  const auto until = Clock::now() + timeout;
  while (true) {
    ncclResult_t state = ncclInProgress;
    {
      const Entered entered(handles_, what, NcclHandles::Call::make);
      const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
      if (result != ncclSuccess) throw_nccl(result, comm, what, facts);
    }
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) throw_nccl(state, comm, what, facts);
    if (Clock::now() > until) {
      throw Timeout(str(what, ": not all ranks have connected within ",
                        static_cast<double>(timeout.count()) / 1000, " s"),
                    facts);
    }
    // Chosen: short beside the seconds that connecting takes.
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

NcclCommunicators::Attempt NcclCommunicators::connecting(const std::string& group) const {
  return {str("rank ", options_.rank, " cannot connect group ", group),
          {.operation = "connect", .group = group, .rank = options_.rank}};
}

ncclConfig_t NcclCommunicators::config([[maybe_unused]] bool copy_engine) const {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 1;
  const NcclCommOptions& wanted = options_.communicators;
  if (wanted.min_ctas) made.minCTAs = *wanted.min_ctas;
  if (wanted.max_ctas) made.maxCTAs = *wanted.max_ctas;
  // NCCL 2.28 compares minCTAs with maxCTAs even if maxCTAs is unset, and then refuses every minCTAs.
  if (wanted.min_ctas && !wanted.max_ctas) made.maxCTAs = NcclCommOptions::kMostCtas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  if (wanted.cta_policy) made.CTAPolicy = *wanted.cta_policy;
#endif
#ifdef NCCL_CTA_POLICY_ZERO
  if (copy_engine) made.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  return made;
}

void NcclCommunicators::register_buffers(const std::vector<NcclCommunicatorPtr>& members,
                                         std::span<const std::span<std::byte>> buffers,
                                         std::vector<Registered>& registered) {
  for (const NcclCommunicatorPtr& member : members) {
    const std::string what = str("rank ", options_.rank, " cannot register its buffers with ", member->name);
    const Entered entered(handles_, what, NcclHandles::Call::use);
    for (const std::span<std::byte> buffer : buffers) {
      Registered made{*member->comm, nullptr};
      const ncclResult_t result = ncclCommRegister(*member->comm, buffer.data(), buffer.size(), &made.handle);
      if (result != ncclSuccess) throw_nccl(result, *member->comm, what);
      registered.push_back(made);
    }
  }
}

void NcclCommunicators::deregister(std::vector<Registered>& registered) {
  if (registered.empty() || !handles_.enter()) return;
  for (const Registered& buffer : registered)
    static_cast<void>(ncclCommDeregister(buffer.comm, buffer.handle));
  handles_.leave();
  registered.clear();
}

void NcclCommunicators::reset_sequences() {
  for (auto& [name, begun] : begun_) begun.reset_sequence();
}

void NcclCommunicators::forget_ends() {
  for (const auto& [name, communicator] : communicators_) communicator->ends.clear();
}

}  // namespace cp::runtime
