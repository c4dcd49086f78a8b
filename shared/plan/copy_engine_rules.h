// What a collective of a group with copy_engine has to be, beside the rules of its operation. Used by
// validate_step() only.
//
//   operation   all_gather, all_to_all or exchange: copy engines move data and compute nothing; and none that
//               the target's library gives to multiprocessors only (Target::sm_only)
//   views       of symmetric temporaries: what is read, since the library takes copy engines only for windows
//               that all ranks have registered (NCCL 2.28 to 2.30: enqueue.cc), and what is written, since
//               peers write it
//   exchanges   each send says where it arrives, in a view of the same type and size; receives and sends of
//               other groups do not
//
// check_symmetric.cc proves of all ranks together that the places agree.
#pragma once

#include <string_view>

#include "shared/plan/plan.h"
#include "shared/plan/view_rules.h"

namespace cp {

// Whether groups with copy_engine have this collective.
bool copy_engines_move(std::string_view operation);

class CopyEngineRules : ViewRules {
 public:
  using ViewRules::ViewRules;
  void check(const Collective& collective) const;

 private:
  void check_moved(const Collective& collective, const Group& group) const;
  void check_there(const Transfer& send) const;
};

}  // namespace cp
