#include "shared/plan/copy_engine_rules.h"

#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp {

bool copy_engines_move(std::string_view operation) {
  return operation == "all_gather" || operation == "all_to_all" || operation == "exchange";
}

void CopyEngineRules::check(const Collective& collective) const {
  const Group& group = plan_.groups[idx(group_of(collective))];
  if (group.copy_engine) return check_moved(collective, group);
  const Exchange* exchange = std::get_if<Exchange>(&collective);
  if (exchange == nullptr) return;
  for (const Transfer& send : exchange->sends) {
    require(is_absent(send.there), "a send to peer ", send.peer, " says where it arrives, but group ",
            canonical_name(group), " has no copy engines; leave `there` out");
  }
}

void CopyEngineRules::check_moved(const Collective& collective, const Group& group) const {
  const std::string_view operation = operation_name(collective);
  require(copy_engines_move(operation), "group ", canonical_name(group),
          " is of copy engines, which move data ",
          "and compute nothing: they have all_gather, all_to_all and exchange; use a group without them");
  require(!plan_.target.sm_only.contains(std::string(operation)), "target ", plan_.target.name, " moves ",
          operation, " by multiprocessors only; use a group without copy engines");
  const auto reached = [&](const Access& access) {
    const Buffer& buffer = buffer_of(*access.view);
    require(buffer.symmetric, "copy engines of other ranks reach only symmetric temporaries, and ",
            buffer.name, buffer.kind == BufferKind::temporary ? " is another one" : " is the caller's",
            "; copy it to or from a symmetric one");
  };
  std::visit([&](const auto& op) { for_each_access_of(op, index_in_group(plan_, op.group), reached); },
             collective);
  const Exchange* exchange = std::get_if<Exchange>(&collective);
  if (exchange == nullptr) return;
  for (const Transfer& send : exchange->sends) check_there(send);
  for (const Transfer& recv : exchange->recvs) {
    require(is_absent(recv.there), "a receive from peer ", recv.peer,
            " says where it arrives, which its sender says; leave `there` out");
  }
}

void CopyEngineRules::check_there(const Transfer& send) const {
  require(!is_absent(send.there), "a send to peer ", send.peer,
          " by copy engines lacks `there`: it is a write into the peer's memory; say where it arrives");
  check_view(send.there, false);
  contiguous(send.there), same_dtype(send.view, send.there), same_numel(send.view, send.there);
  require(buffer_of(send.there).symmetric, "a send to peer ", send.peer, " arrives in ",
          buffer_of(send.there).name, ", which is no symmetric temporary; peers have no such place");
}

}  // namespace cp
