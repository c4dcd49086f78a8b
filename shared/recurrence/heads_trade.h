// The all-to-all that trades rows for heads (StateScan::heads): redistributions from row_layout() to whole
// sequences of some heads and back. Internal to shared/recurrence.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shared/plan/builder.h"
#include "shared/recurrence/recurrence_plan.h"
#include "shared/redistribute/redistribution.h"

namespace cp::detail {

class HeadsTrade {
 public:
  // Plans the moves of all tensors of the problem. Every rank must get whole key heads.
  explicit HeadsTrade(const RecurrenceRequest& request);

  // A [batch, seq_len, heads, dim] tensor; a dim of 0 stands for [batch, seq_len, heads].
  struct Kind {
    std::int64_t heads, dim;
    DType dtype;
    bool operator==(const Kind&) const = default;
  };
  // Both append the steps of one rank. Buffers hold its part and nothing else: at home in the order of the
  // balance, and at the heads' rank in the order of the sequence.
  void to_heads(PlanBuilder& builder, Rank self, const Kind& kind, BufferId home, BufferId there) const;
  void to_rows(PlanBuilder& builder, Rank self, const Kind& kind, BufferId there, BufferId home) const;

 private:
  struct Moves {
    Kind kind;
    Redistribution there, back;
  };
  const Moves& moves_of(const Kind& kind) const;
  std::vector<Moves> moves_;
};

}  // namespace cp::detail
