#include "runtime/nccl/nccl_windows.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/errors.h"
#include "runtime/nccl/nccl_error.h"
#include "runtime/nccl/nccl_later.h"
#include "shared/base/error.h"
#include "shared/plan/temporaries.h"

namespace cp::runtime {
namespace {

// The version that gives an operation to copy engines.
int since(std::string_view operation) {
  return operation == "exchange" ? kNcclPutSince : kNcclCopyEnginesSince;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(kSymmetricSegmentBytes % NCCL_WIN_REQUIRED_ALIGNMENT == 0);

ncclResult_t register_window(ncclComm_t comm, std::span<std::byte> segment, void** made) {
  ncclWindow_t window = nullptr;
  const ncclResult_t result =
      ncclCommWindowRegister(comm, segment.data(), segment.size(), &window, NCCL_WIN_COLL_SYMMETRIC);
  *made = window;
  return result;
}
void deregister_window(const NcclWindow& window) {
  static_cast<void>(ncclCommWindowDeregister(window.comm, static_cast<ncclWindow_t>(window.window)));
}
#endif

// The first call for a put or a signal makes NCCL register memory for signals, together with all ranks of the
// communicator (rma_ce.cc), of which some may have nothing to send in a plan's first Exchange. So all of them
// signal round the group here, once for each communicator: later rounds could pass the puts of a plan that
// runs.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
ncclResult_t signal_round(const NcclCommunicator& member, Rank rank, const NcclHandles& handles) {
  const auto size = static_cast<int>(member.group.ranks.size());
  const auto self =
      static_cast<int>(std::ranges::find(member.group.ranks, rank) - member.group.ranks.begin());
  const CudaStream stream(CudaStream::Priority::normal);
  ncclWaitSignalDesc_t wait{.opCnt = 1, .peer = (self + size - 1) % size, .sigIdx = 0, .ctx = 0};
  ncclResult_t result = ncclSignal((self + 1) % size, 0, 0, 0, *member.comm, stream.get());
  if (result == ncclSuccess) result = ncclWaitSignal(1, &wait, *member.comm, stream.get());
  while (result == ncclSuccess && !handles.is_ending() && !is_finished(stream.get()))
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // chosen, as in NcclHandles
  return result;
}
#else
ncclResult_t signal_round(const NcclCommunicator&, Rank, const NcclHandles&) { return ncclSuccess; }
#endif

// A call into NCCL, which ends however the scope is left.
class Inside {
 public:
  Inside(NcclHandles& handles, const std::string& what) : handles_(handles) {
    if (!handles_.enter(NcclHandles::Call::use))
      throw PeerLost(str(what, ": the communicators were aborted on this side"));
  }
  ~Inside() { handles_.leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  NcclHandles& handles_;
};

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
ncclResult_t register_window(ncclComm_t, std::span<std::byte>, void**) { return ncclInvalidUsage; }
void deregister_window(const NcclWindow&) {}
#endif

}  // namespace

void NcclWindows::add(const Plan& plan, const std::vector<NcclCommunicatorPtr>& members,
                      std::span<std::byte> segment, std::vector<NcclWindow>& windows) {
  const Rank rank = plan.self;
  windows.assign(members.size(), {});
  if (segment.empty()) return;
  std::set<GroupId> exchanging;
  for (const StepRef& ref : steps_of(plan)) {
    const Collective* collective = std::get_if<Collective>(&ref.step->work);
    if (collective != nullptr && std::holds_alternative<Exchange>(*collective))
      exchanging.insert(group_of(*collective));
  }
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) -> const std::string& { return members[i]->name; });
  for (const std::size_t i : order) {
    NcclCommunicator& member = *members[i];
    if (!member.group.copy_engine) continue;
    const std::string what = str("rank ", rank, " cannot register its symmetric segment with ", member.name);
    NcclWindow& window = windows[i];
    window.comm = *member.comm;
    const ncclResult_t result = [&] {
      const Inside inside(handles_, what);
      const ncclResult_t registered = register_window(window.comm, segment, &window.window);
      const bool opens = exchanging.contains(static_cast<GroupId>(i)) && member.group.ranks.size() > 1 &&
                         !std::exchange(member.puts_are_open, true);
      if (registered != ncclSuccess || window.window == nullptr || !opens) return registered;
      return signal_round(member, rank, handles_);
    }();
    if (result != ncclSuccess) throw_nccl(result, window.comm, what);
    if (window.window == nullptr) {
      throw InvalidInput(str(what,
                             ": NCCL gives no window, for which all GPUs of the group must reach one "
                             "another by NVLink, and NCCL_WIN_ENABLE and NCCL_CUMEM_ENABLE must not be 0; "
                             "use transfers=sm, or put the group's ranks on such GPUs"));
    }
  }
}

void NcclWindows::remove(std::vector<NcclWindow>& windows) {
  if (windows.empty() || !handles_.enter()) return;
  for (const NcclWindow& window : windows) {
    if (window.window != nullptr) deregister_window(window);
  }
  handles_.leave();
  windows.clear();
}

const Target& with_copy_engines_of(const Target& target, const NcclVersions& versions) {
  std::set<std::string> lacks;
  for (const std::string_view operation : {"all_gather", "all_to_all", "exchange"}) {
    if (std::min(versions.header, versions.loaded) < since(operation)) lacks.emplace(operation);
  }
  if (lacks == target.sm_only) return target;
  static std::mutex mutex;
  static auto& made = *new std::deque<Target>;  // whose addresses stay
  const std::lock_guard lock(mutex);
  Target wanted = target;
  wanted.sm_only = std::move(lacks);
  const auto known = std::ranges::find(made, wanted);
  return known != made.end() ? *known : made.emplace_back(std::move(wanted));
}

void refuse_copy_engines(const Plan& plan, const NcclVersions& versions) {
  for (const StepRef& ref : steps_of(plan)) {
    const Collective* collective = std::get_if<Collective>(&ref.step->work);
    if (collective == nullptr || !plan.groups[static_cast<std::size_t>(group_of(*collective))].copy_engine)
      continue;
    const std::string_view operation = operation_name(ref.step->work);
    const auto refusal = refuse_nccl_option(str(operation, " by copy engines"), since(operation), versions);
    if (refusal) throw InvalidInput(str(*refusal, "; without them, plan with transfers=sm"));
  }
}

}  // namespace cp::runtime
