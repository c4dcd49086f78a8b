#include <algorithm>
#include <limits>

#include "shared/plan/check_internal.h"
#include "shared/plan/operations.h"

namespace cp::checker {
namespace {

class Memory {
 public:
  explicit Memory(const RankPlan& rank) : rank_(rank), plan_(*rank.plan) {}

  void check(const CheckLimits& limits) {
    check_places();
    check_uses();
    check_sharing();
    if (limits.arena_bytes && plan_.arena_bytes > *limits.arena_bytes) {
      fail("the arena has ", plan_.arena_bytes, " bytes, more than the limit of ", *limits.arena_bytes);
    }
    if (limits.peak_bytes && peak_bytes(plan_) > *limits.peak_bytes) {
      fail("the arena of ", plan_.arena_bytes, " bytes and the caller's buffers make ", peak_bytes(plan_),
           " bytes, more than the limit of ", *limits.peak_bytes);
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckFailure(str("rank ", plan_.self, ": ", parts...), {.rank = plan_.self});
  }

  static bool is_placed(const Buffer& buffer) {
    return buffer.kind == BufferKind::temporary && buffer.numel > 0;
  }

  std::string place_text(const Buffer& buffer) const {
    return str(buffer.name, " at arena bytes [", buffer.offset_bytes, ", ",
               buffer.offset_bytes + buffer.bytes(), ")");
  }

  void check_places() const {
    if (plan_.arena_bytes < 0) fail("the arena has ", plan_.arena_bytes, " bytes");
    for (const Buffer& buffer : plan_.buffers) {
      if (buffer.numel < 0 ||
          buffer.numel > std::numeric_limits<std::int64_t>::max() / size_bytes(buffer.dtype)) {
        fail("buffer ", buffer.name, " has ", buffer.numel, " elements");
      }
      if (!is_placed(buffer)) continue;
      if (buffer.offset_bytes < 0 || buffer.bytes() > plan_.arena_bytes ||
          buffer.offset_bytes > plan_.arena_bytes - buffer.bytes()) {
        fail(place_text(buffer), " leaves the arena of ", plan_.arena_bytes, " bytes");
      }
      const std::int64_t alignment = std::max(plan_.target.alignment_bytes, size_bytes(buffer.dtype));
      if (buffer.offset_bytes % alignment != 0) {
        fail(place_text(buffer), " is not aligned to ", alignment, " bytes; the next place is ",
             align_up(buffer.offset_bytes, alignment));
      }
    }
  }

  // The declared uses hold the real ones: what is derived from them (peaks over time, sharing) is then right.
  void check_uses() const {
    for (const StepRef& ref : rank_.steps) {
      for_each_access(ref.step->work, rank_.index_for(ref.step->work), [&](const Access& access) {
        const Buffer& buffer = rank_.buffer(*access.view);
        if (!is_placed(buffer) ||
            (buffer.first_use <= ref.id && ref.id <= buffer.last_use && buffer.first_use >= 0)) {
          return;
        }
        fail(step_text(plan_, ref.id), " uses ", buffer.name, ", whose declared uses are steps ",
             buffer.first_use, " to ", buffer.last_use);
      });
    }
  }

  // Goes through first and last uses in issue order with the set of buffers in use, which never overlap. A
  // Repeat's body is gone through once. That its iterations do not meet in shared bytes, whether by what is
  // carried from one to the next or on different streams, check_order.cc proves of the unrolled steps.
  void check_sharing() {
    struct Event {
      StepId step;
      bool begins;  // at equal steps the beginnings come first: a step's buffers are in use together
      const Buffer* buffer;
    };
    std::vector<Event> events;
    for (const Buffer& buffer : plan_.buffers) {
      if (!is_placed(buffer) || buffer.first_use < 0) continue;
      events.push_back({buffer.first_use, true, &buffer});
      events.push_back({buffer.last_use, false, &buffer});
    }
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      if (a.step != b.step) return a.step < b.step;
      if (a.begins != b.begins) return a.begins;
      return a.buffer < b.buffer;
    });
    std::vector<const Buffer*> in_use;  // by place
    const auto before = [](const Buffer* a, const Buffer* b) { return a->offset_bytes < b->offset_bytes; };
    for (const Event& event : events) {
      const auto at = std::lower_bound(in_use.begin(), in_use.end(), event.buffer, before);
      if (!event.begins) {
        in_use.erase(at);
        continue;
      }
      if (at != in_use.end()) check_apart(*event.buffer, **at);
      if (at != in_use.begin()) check_apart(**std::prev(at), *event.buffer);
      in_use.insert(at, event.buffer);
    }
  }

  void check_apart(const Buffer& low, const Buffer& high) const {
    if (low.offset_bytes + low.bytes() <= high.offset_bytes) return;
    fail(place_text(low), " (steps ", low.first_use, " to ", low.last_use, ") and ", place_text(high),
         " (steps ", high.first_use, " to ", high.last_use,
         ") share bytes while both are in use; move one of them");
  }

  const RankPlan& rank_;
  const Plan& plan_;
};

}  // namespace

void check_memory(const RankPlan& rank, const CheckLimits& limits) { Memory(rank).check(limits); }

}  // namespace cp::checker
