// When the temporaries of a plan live: from their first to their last use, on all streams.
//
// What a Repeat's body uses lives through the whole Repeat, unless nothing is carried from one iteration to
// another: then it lives anew in each. Nothing is carried if all uses are in the body, and each iteration
// reads only what it has written before. For example, of the body
//
//   a = f(x);  b = g(a);  x = h(b)
//
// a and b live anew in each iteration. x does not: an iteration begins with what the one before has left
// there.
#pragma once

#include <cstddef>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/arena.h"
#include "shared/plan/order.h"
#include "shared/plan/plan.h"
#include "shared/plan/written.h"

namespace cp {

class Lives {
 public:
  // Both must outlive this object.
  Lives(const Plan& plan, const Order& order);

  bool used(BufferId buffer) const { return uses_[idx(buffer)].segment != kNone; }
  // The first and the last step of its life, -1 if it is not used.
  StepId first_use(BufferId buffer) const;
  StepId last_use(BufferId buffer) const;
  // Of a buffer that is used: a block that lacks size, alignment and anchor.
  Block block(BufferId buffer) const;
  // Whether `earlier` is known to be over when `later` starts to live (see Ordered).
  bool ordered(BufferId earlier, BufferId later, Turn turn) const;

 private:
  static constexpr std::int32_t kNone = -1, kSeveral = -2;
  struct Segment {
    StepId begin = 0, end = 0;
    std::int64_t count = 1;
    bool repeats = false;
    std::size_t ends_of_first = 0;  // of a Repeat: where its part of ends_of_first_ begins
  };
  struct Uses {
    std::int32_t segment = kNone;  // index into segments_, or kSeveral
    StepId first = -1, last = -1;
    StepId segment_first = -1, segment_last = -1;  // those of the segments, whole
    bool carried = false;
    Advance advance;  // of all its views in a body
    Written written;
  };

  void add_segment(const std::vector<StepRef>& steps, const Segment& segment);
  void read(const View& view);
  void write(const View& view);
  void use(BufferId buffer, StepId step, const Segment& segment);
  void follow_streams(BufferId buffer, StepId step, const Segment& segment);
  bool moves_with_others(Uses& uses, const View& view);
  bool lives_in_body(const Uses& uses) const;
  // The first position that may not be over when the buffer starts to live: at all, and of a Repeat's first
  // iteration when it does so in the second. num_positions() if there is none.
  Position first_unsure(BufferId buffer) const;
  Position first_unsure_of_second(BufferId buffer, const Segment& segment) const;
  std::size_t row(BufferId buffer) const { return idx(buffer) * num_streams_; }

  const Plan& plan_;
  const Order& order_;
  std::size_t num_streams_;
  std::vector<Segment> segments_;
  std::vector<Uses> uses_;  // by buffer
  // By buffer, then stream; empty if all is on one stream. The last use there: of the last iteration, and of
  // the first one. And the latest position that is over before the buffer starts to live on any stream: in
  // the first iteration, and in the second.
  std::vector<Position> last_, last_of_first_, known_, known_of_second_;
  std::vector<Position> ends_of_first_;  // by Repeat, then stream: the last position of the first iteration
};

}  // namespace cp
