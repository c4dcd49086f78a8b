// NcclCommunicators: a communicator of NCCL for each group of a rank, made once and kept for later plans.
//
// Each is made in two moves. First a communicator that does not block (ncclConfig_t::blocking = 0), of the
// world or of the group's members: connecting can then be given up after a time. From that one the group's is
// split, which blocks: calls of one that does not block each start a thread of NCCL (ncclGroupEnd of NCCL
// 2.28), several times the cost of the call. The first one, through which nothing is ever sent, has a single
// channel; the other shares nothing with it (ncclConfig_t::splitShare) and inherits no option.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nccl.h>

#include "runtime/begun_collectives.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_handles.h"
#include "shared/base/error.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct NcclCommunicator {
  Group group;
  std::string name;  // canonical_name(group)
  BegunCollectives begun;
  ncclComm_t* comm = nullptr;
};

// All functions are for the rank's thread.
class NcclCommunicators {
 public:
  // `options` and `handles` outlive this. Throws InvalidInput for options that have no effect here.
  NcclCommunicators(const NcclOptions& options, NcclHandles& handles);

  // The groups' communicators, by GroupId; those that are missing are made, in the order of their names.
  // Blocks. Throws Timeout with the group and its members when not all of them came in time, PeerLost when
  // the end has begun meanwhile, and as throw_nccl. After an error the handles are to be aborted.
  std::vector<NcclCommunicator*> connect(const std::vector<Group>& groups);

  // Registers memory with each of the communicators (ncclCommRegister) until forget_buffers().
  void register_buffers(const std::vector<NcclCommunicator*>& members,
                        std::span<const std::span<std::byte>> buffers);
  void forget_buffers();

  // Waits until what was asked of the communicator is done. Throws as connect(); `what` of messages.
  void await(ncclComm_t comm, const std::string& what, const ErrorFacts& facts) const;

  void reset_sequences();

 private:
  using Groups = std::map<std::string, Group>;  // by name

  Groups missing(const std::vector<Group>& groups) const;
  void split_from_world(const Groups& own);
  // For errors of connecting: "rank 0 cannot connect group cp[0,1]".
  struct Attempt {
    std::string what;
    ErrorFacts facts;
  };
  Attempt connecting(const std::string& group) const;
  // A communicator of the ranks that does not block.
  ncclComm_t connect_parent(const std::string& key, const std::vector<Rank>& ranks, const Attempt& attempt);
  // The rank's group among those that the parent is split into, or none of them.
  void split(ncclComm_t parent, int color, const Group* group, const Attempt& attempt);
  ncclConfig_t config() const;

  struct Registered {
    ncclComm_t comm = nullptr;
    void* handle = nullptr;
  };
  const NcclOptions& options_;
  NcclHandles& handles_;
  std::map<std::string, std::unique_ptr<NcclCommunicator>> communicators_;  // by name
  ncclComm_t world_ = nullptr;                                              // to split from
  std::int64_t gathers_ = 0;
  std::vector<Registered> registered_;
};

// Groups of one call each of ncclCommSplit: in order, as many as have no rank in common. Equal on all ranks
// that give the same groups.
std::vector<std::vector<const Group*>> split_rounds(const std::map<std::string, Group>& groups);

}  // namespace cp::runtime
