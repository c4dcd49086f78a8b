// NcclCommunicators makes a communicator of NCCL for each group of a rank, and keeps it for later plans.
//
// Each communicator is made in two moves:
//   1. A parent, of the world or of the group's members, whose calls do not block (blocking = 0 in its
//      ncclConfig_t). So connecting can be given up after a time.
//   2. The group's communicator, split from the parent, whose calls block. With a communicator that does not
//      block, each call would start a thread of NCCL (ncclGroupEnd of NCCL 2.28), which costs several times
//      as much as the call.
// Nothing is ever sent through the parent, so it has a single channel. The other shares nothing with it
// (ncclConfig_t::splitShare) and inherits no option. The parent of a group is destroyed when it has been
// split; that of the world is kept, for other groups.
//
// Of communicators that no plan uses, those that were used last are kept, up to a limit
// (NcclCommOptions::most_kept). Each rank gives back its own, when it pleases: whether a group has to connect
// again is agreed when its members prepare the next plan with it (nccl_agreement.h). A group then has a new
// communicator on all of them, and one that a rank still has of it is given back, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <boost/circular_buffer.hpp>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "runtime/begun_collectives.h"
#include "runtime/nccl/nccl_agreement.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl_descriptors.h"
#include "runtime/nccl_pools.h"
#include "runtime/nccl_versions.h"
#include "shared/base/error.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Of the header that this was built with, and of the library that this process has.
NcclVersions nccl_versions();

struct NcclCommunicator {
  static constexpr std::size_t kMostUnderWay = 64;  // nccl_order.h says why
  Group group;
  std::string name;            // canonical_name(group)
  BegunCollectives& begun;     // of the group, whatever communicators it had; NcclCommunicators owns it
  ncclComm_t* comm = nullptr;  // the handle's place, which NcclHandles owns
  // Of the latest collectives, which may be under way.
  boost::circular_buffer<cudaEvent_t> ends{kMostUnderWay};
  bool puts_are_open = false;  // whether signals have gone round the group (nccl_windows.cc)
  std::int64_t used = 0;       // when a plan with the group was prepared last: a count of all such plans
};
// Plans share a group's communicator with NcclCommunicators. The last one to let it go gives it back to NCCL.
using NcclCommunicatorPtr = std::shared_ptr<NcclCommunicator>;

// All functions are for the rank's thread, the one that uses the device.
class NcclCommunicators {
 public:
  // `options` and `handles` must outlive this object. Throws InvalidInput for a cta_policy that has no effect
  // here: on plans, or with this version of NCCL.
  NcclCommunicators(const NcclOptions& options, NcclHandles& handles);

  // Before connect(): gives back communicators that no plan uses, the least recently used ones first, so that
  // with those of the groups there are no more than most_kept, and all find the shared memory and the file
  // descriptors that they need. `may_end` says whether that is allowed now: the GPU is idle, so that what
  // NCCL frees waits for nothing, and ranks agree (nccl_agreement.h). Raises the process's limit of
  // descriptors if need be. Throws InvalidInput if there is too little of either all the same (nccl_pools.h,
  // nccl_descriptors.h).
  void make_room(const std::vector<Group>& groups, bool may_end);

  struct Connected {
    std::vector<NcclCommunicatorPtr> members;  // by GroupId
    std::chrono::milliseconds longest{0};      // of the planned times of this rank and its peers
  };
  // Returns the groups' communicators, and makes those that are missing, on any member, in the order of the
  // groups' names. `planned` is planned_time() of this rank's plan. The function blocks. Throws InvalidInput
  // if this rank is not a member of a group, Timeout if not all members came in time, PeerLost if the
  // handles' end has begun meanwhile, and what throw_nccl() and NcclOptions::agree throw. After an error the
  // caller must abort the handles.
  Connected connect(const std::vector<Group>& groups, std::chrono::milliseconds planned,
                    NcclAgreement& agreement);
  // Communicators of groups that this rank has, in use or not.
  std::size_t count() const { return communicators_.size(); }

  // A buffer that is registered with a communicator.
  struct Registered {
    ncclComm_t comm = nullptr;
    void* handle = nullptr;
  };
  // Registers the buffers with each of the communicators (ncclCommRegister), and adds to `registered` what
  // deregister() needs. The buffers stay the caller's. NCCL keeps their addresses in the GPUs of the peers,
  // so that they must be deregistered before they are freed, and no collective may use them then.
  void register_buffers(const std::vector<NcclCommunicatorPtr>& members,
                        std::span<const std::span<std::byte>> buffers, std::vector<Registered>& registered);
  void deregister(std::vector<Registered>& registered);

  // Waits until the communicator has done what it was asked for. Throws what connect() throws; messages begin
  // with `what`.
  void await(ncclComm_t comm, const std::string& what, const ErrorFacts& facts) const;

  void reset_sequences();
  // Nothing that was issued is under way.
  void forget_ends();

 private:
  using Groups = std::map<std::string, Group>;  // by name

  bool is_member(const Group& group) const;
  void forget(const std::string& name);  // keeps no communicator of the group any more
  bool forget_oldest(const Groups& but);
  void split_from_world(const Groups& own);
  // What errors of connecting say: "rank 0 cannot connect group cp[0,1]".
  struct Attempt {
    std::string what;
    ErrorFacts facts;
  };
  Attempt connecting(const std::string& group) const;
  // Makes a communicator of the ranks whose calls do not block. `key` is the same on all of them, and new.
  ncclComm_t* connect_parent(const std::string& key, const std::vector<Rank>& ranks, const Attempt& attempt);
  // Splits the parent. `group` is this rank's group among those that the parent is split into, or null.
  void split(ncclComm_t parent, int color, const Group* group, const Attempt& attempt);
  ncclConfig_t config(bool copy_engine) const;

  const NcclOptions& options_;
  NcclHandles& handles_;
  std::map<std::string, BegunCollectives> begun_;             // by name
  std::map<std::string, NcclCommunicatorPtr> communicators_;  // by name
  std::map<std::string, std::int64_t> made_;                  // communicators of the group so far, by name
  NcclPools pools_;
  NcclDescriptors descriptors_;
  ncclComm_t* world_ = nullptr;  // to split from
  std::int64_t gathers_ = 0, uses_ = 0;
};

// Deals the groups into rounds. Each round is one call of ncclCommSplit, so its groups have no rank in
// common: it takes the groups in order and leaves those that do not fit for the next rounds. The result is
// the same on all ranks that give the same groups.
std::vector<std::vector<const Group*>> split_rounds(const std::map<std::string, Group>& groups);

}  // namespace cp::runtime
