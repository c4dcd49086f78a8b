// The rules of the steps of recurrences: see plan.h for what each one means. step_rules.cc asks for them.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/view_rules.h"

namespace cp {

template <class Op>
inline constexpr bool kIsRecurrence =
    std::is_same_v<Op, RecurrenceForward> || std::is_same_v<Op, RecurrenceSummary> ||
    std::is_same_v<Op, RecurrenceSummaryGradient> || std::is_same_v<Op, RecurrenceJoin> ||
    std::is_same_v<Op, RecurrenceBackward>;

inline bool is_recurrence(const Kernel& kernel) {
  return std::visit([](const auto& op) { return kIsRecurrence<std::remove_cvref_t<decltype(op)>>; }, kernel);
}

// The longest keys that the GPU's backward kernel takes: its blocks of threads hold a state's tile in
// registers (runtime/cuda/recurrence_tiles.h).
inline constexpr std::int64_t kMostKeysOnGpus = 1024;

// The most key heads that a GPU's backward kernel is given memory for: chosen, since 64 of them occupy half
// of the multiprocessors of the largest.
inline constexpr std::int64_t kRecurrenceLanes = 64;

// The backward kernel goes through the rows from the last to the first and needs the state before each. It
// keeps the states at the begin of each block of rows, and makes those of one block anew. With blocks of
// about sqrt(rows) the two kinds are equally many, which is the least memory.
//
// The rows of such a block: the least whole number whose square is at least `rows`, and at least 1.
std::int64_t recurrence_block_rows(std::int64_t rows);
// The elements of RecurrenceBackward::workspace that one key head of one batch entry takes, with the
// `value_heads` that share it: in this order, in states [value_heads, key_dim, value_dim] each, those before
// the rows of a block, those at the blocks' begins, the state that goes through the rows, and its gradient.
std::int64_t recurrence_workspace_numel(std::int64_t rows, std::int64_t value_heads, std::int64_t key_dim,
                                        std::int64_t value_dim);

// Throws InvalidInput, as validate_step() does.
class RecurrenceRules : ViewRules {
 public:
  using ViewRules::ViewRules;
  void check(const RecurrenceForward& op) const;
  void check(const RecurrenceSummary& op) const;
  void check(const RecurrenceSummaryGradient& op) const;
  void check(const RecurrenceJoin& op) const;
  void check(const RecurrenceBackward& op) const;

 private:
  void check_keys(const View& keys, std::string_view role, const View& log_decay, const View& beta) const;
  void check_values(const View& keys, const View& values, const View& log_decay, std::string_view role) const;
  void check_state(const View& state, const View& keys, const View& values, std::string_view role) const;
  void check_starts(const std::vector<std::int64_t>& starts, std::int64_t rows) const;
  void check_scale(double scale) const;
};

}  // namespace cp
