#include "tests/emulated_gpu/nccl_connections.h"

#include <cstddef>

namespace cp::emulated {

NcclConnections::NcclConnections(const Members& members)
    : self_(static_cast<std::size_t>(members.rank)), calls_(members.calls) {
  for (const Hello& hello : members.hellos) peers_.push_back({calls_name(hello)});
}

void NcclConnections::note_needs(const std::vector<NcclOperation>& operations) {
  for (Peer& peer : peers_) peer.needed = 0;
  for (const NcclOperation& operation : operations) {
    if (is_collective(operation)) {
      for (Peer& peer : peers_) peer.needed |= collective;
    } else if (!is_one_sided(operation)) {
      const bool is_send = operation.function == NcclOperation::Function::send;
      peers_[static_cast<std::size_t>(operation.peer)].needed |= is_send ? sends : receives;
    }
  }
  peers_[self_].needed = 0;
}

void NcclConnections::connect(const std::vector<NcclOperation>& operations, const GivenUp& given_up) {
  note_needs(operations);
  while (true) {
    bool all_said = true, all_heard = true;
    for (Peer& peer : peers_) {
      const Said own{static_cast<std::int32_t>(self_), peer.needed};
      const bool is_new = (peer.needed & ~peer.said) != 0;
      if (is_new && try_send_to(calls_, peer.name, &own, sizeof own)) peer.said |= peer.needed;
      all_said = all_said && (peer.needed & ~peer.said) == 0;
    }
    for (Said theirs; try_receive(calls_, &theirs, sizeof theirs);) {
      Peer& peer = peers_.at(static_cast<std::size_t>(theirs.rank));
      if ((theirs.needs & collective) != 0) peer.heard |= collective;
      if ((theirs.needs & sends) != 0) peer.heard |= receives;
      if ((theirs.needs & receives) != 0) peer.heard |= sends;
    }
    for (const Peer& peer : peers_) all_heard = all_heard && (peer.needed & ~peer.heard) == 0;
    if (all_said && all_heard) return;
    if (given_up()) throw SocketError("aborted while not all of them have called");
    wait_to_receive(calls_);
  }
}

}  // namespace cp::emulated
