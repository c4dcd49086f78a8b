// Defects to plant in correct attention plans, one place at a time, and the words that a finding about each
// must contain.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/ledger/findings.h"
#include "tests/proof/plan_damage.h"

namespace cp::testing {

enum class Book : std::uint8_t { cells, bytes };

struct Defect {
  std::string_view name;
  Book book;  // which of the ledger's must have the finding
  std::function<std::vector<Damage>(std::vector<Plan>&)> damages;  // every place for it in the plans
};
inline void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }
const std::vector<Defect>& all_defects();

// What there is to say about plans, right or wrong ones.
struct Found {
  std::string check;  // what check() objects to before it
  sim::Findings cells, bytes;
  bool nothing() const { return check.empty() && cells.empty() && bytes.empty(); }
  std::string text() const {
    return str("check: ", check, "\ncells: ", cells.summary(), "\nbytes: ", bytes.summary());
  }
};

Found look(const AttentionRequest& request, AttentionPass pass, const std::vector<Plan>& plans);

// ---- mask slices ----

// The pairs of a kernel's local queries and keys, each as often as slices allow it.
inline std::map<std::pair<std::int64_t, std::int64_t>, int> cells_of(const std::vector<MaskSlice>& slices) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> cells;
  for (const MaskSlice& slice : slices) {
    for (std::int64_t i = slice.q_begin; i < slice.q_begin + slice.q_len; ++i) {
      for (std::int64_t j = slice.k_begin; j < slice.k_begin + slice.k_len; ++j) {
        if (allows(slice, i, j)) ++cells[{i, j}];
      }
    }
  }
  return cells;
}
inline bool within(const MaskSlice& slice, const View& q, const View& k) {
  return slice.q_begin >= 0 && slice.k_begin >= 0 && slice.q_len >= 0 && slice.k_len >= 0 &&
         slice.q_begin + slice.q_len <= q.shape[1] && slice.k_begin + slice.k_len <= k.shape[1];
}

using SliceChange = std::function<void(std::vector<MaskSlice>& slices, std::size_t which)>;

inline SliceChange drop_slice() {
  return [](std::vector<MaskSlice>& slices, std::size_t which) {
    slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(which));
  };
}
inline SliceChange repeat_slice() {
  return
      [](std::vector<MaskSlice>& slices, std::size_t which) { slices.push_back(MaskSlice(slices[which])); };
}
inline SliceChange move_slice(std::int64_t queries, std::int64_t keys) {
  return [=](std::vector<MaskSlice>& slices, std::size_t which) {
    slices[which].q_begin += queries, slices[which].k_begin += keys;
  };
}
inline SliceChange resize_slice(std::int64_t queries, std::int64_t keys) {
  return [=](std::vector<MaskSlice>& slices, std::size_t which) {
    slices[which].q_len += queries, slices[which].k_len += keys;
  };
}
inline SliceChange move_diagonal(std::int64_t by) {
  return [=](std::vector<MaskSlice>& slices, std::size_t which) { slices[which].diagonal += by; };
}

// The change at every slice of every attention kernel where it changes what is computed.
inline std::vector<Damage> change_slices(std::vector<Plan>& plans, const SliceChange& change,
                                         const std::vector<std::string>& words) {
  std::vector<Damage> damages;
  const auto in_kernel = [&](Plan& plan, StepId id, Step&, auto& op) {
    for (std::size_t which = 0; which < op.slices.size(); ++which) {
      std::vector<MaskSlice> changed = op.slices;
      change(changed, which);
      const bool legal = std::all_of(changed.begin(), changed.end(),
                                     [&](const MaskSlice& slice) { return within(slice, op.q, op.k); });
      if (!legal || cells_of(changed) == cells_of(op.slices)) continue;
      damages.push_back({str(at(plan, id), "slice ", which), words_at(plan, id, words),
                         [&op, changed] { op.slices = changed; }});
    }
  };
  for_each<AttentionForward>(plans, in_kernel);
  for_each<AttentionBackward>(plans, in_kernel);
  return damages;
}

}  // namespace cp::testing
