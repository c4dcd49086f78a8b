// NcclCommunicators makes a communicator of NCCL for each group of a rank, and keeps it for later plans.
//
// Each communicator is made in two moves:
//   1. A parent, of the world or of the group's members, whose calls do not block (blocking = 0 in its
//      ncclConfig_t). So connecting can be given up after a time.
//   2. The group's communicator, split from the parent, whose calls block. With a communicator that does not
//      block, each call would start a thread of NCCL (ncclGroupEnd of NCCL 2.28), which costs several times
//      as much as the call.
// Nothing is ever sent through the parent, so it has a single channel. The other shares nothing with it
// (ncclConfig_t::splitShare) and inherits no option.
#pragma once

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
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl_versions.h"
#include "shared/base/error.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Of the header that this was built with, and of the library that this process has.
NcclVersions nccl_versions();

struct NcclCommunicator {
  static constexpr std::size_t kMostUnderWay = 64;  // nccl_order.h says why
  Group group;
  std::string name;  // canonical_name(group)
  BegunCollectives begun;
  ncclComm_t* comm = nullptr;  // the handle's place, which NcclHandles owns
  // Of the latest collectives, which may be under way.
  boost::circular_buffer<cudaEvent_t> ends{kMostUnderWay};
};

// All functions are for the rank's thread, the one that uses the device.
class NcclCommunicators {
 public:
  // `options` and `handles` must outlive this object. Throws InvalidInput for a cta_policy that has no effect
  // here: on plans, or with this version of NCCL.
  NcclCommunicators(const NcclOptions& options, NcclHandles& handles);

  // Returns the groups' communicators, by GroupId, and makes those that are missing in the order of their
  // names. The function blocks. Throws InvalidInput if this rank is not a member of a group, Timeout if not
  // all members came in time, PeerLost if the handles' end has begun meanwhile, and what throw_nccl() throws.
  // After an error the caller must abort the handles.
  std::vector<NcclCommunicator*> connect(const std::vector<Group>& groups);

  // A buffer that is registered with a communicator.
  struct Registered {
    ncclComm_t comm = nullptr;
    void* handle = nullptr;
  };
  // Registers the buffers with each of the communicators (ncclCommRegister), and adds to `registered` what
  // deregister() needs. The buffers stay the caller's. NCCL keeps their addresses in the GPUs of the peers,
  // so that they must be deregistered before they are freed, and no collective may use them then.
  void register_buffers(const std::vector<NcclCommunicator*>& members,
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

  Groups missing(const std::vector<Group>& groups) const;
  void split_from_world(const Groups& own);
  // What errors of connecting say: "rank 0 cannot connect group cp[0,1]".
  struct Attempt {
    std::string what;
    ErrorFacts facts;
  };
  Attempt connecting(const std::string& group) const;
  // Makes a communicator of the ranks whose calls do not block. `key` is the same on all of them, and new.
  ncclComm_t connect_parent(const std::string& key, const std::vector<Rank>& ranks, const Attempt& attempt);
  // Splits the parent. `group` is this rank's group among those that the parent is split into, or null.
  void split(ncclComm_t parent, int color, const Group* group, const Attempt& attempt);
  ncclConfig_t config() const;

  const NcclOptions& options_;
  NcclHandles& handles_;
  std::map<std::string, std::unique_ptr<NcclCommunicator>> communicators_;  // by name
  ncclComm_t world_ = nullptr;                                              // to split from
  std::int64_t gathers_ = 0;
};

// Deals the groups into rounds. Each round is one call of ncclCommSplit, so its groups have no rank in
// common: it takes the groups in order and leaves those that do not fit for the next rounds. The result is
// the same on all ranks that give the same groups.
std::vector<std::vector<const Group*>> split_rounds(const std::map<std::string, Group>& groups);

}  // namespace cp::runtime
