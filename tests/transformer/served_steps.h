// Requests of serving, whether the checker passes the plans of all ranks, and what these touch of caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/plan/check.h"
#include "shared/plan/operations.h"
#include "shared/transformer/step_plan.h"
#include "tests/support/messages.h"

namespace cp::testing {

inline StepRequest served(StepRequest request, Phase phase, std::int64_t cached) {
  request.workload.phase = phase, request.workload.cached = cached;
  request.workload.new_tokens = phase == Phase::decode ? 1 : 0;
  return request;
}

inline void check_parts(const StepRequest& request) {
  for (const StepPart part : parts_of(request)) {
    SCOPED_TRACE(name(part));
    EXPECT_EQ(message_of<Error>([&] { check(plans_of_all_ranks(request, part)); }), "no error");
  }
}

// How often each element of the buffers whose names begin so is read, and written, by steps.
class Touched {
 public:
  Touched(const Plan& plan, std::string_view prefix) : plan_(plan), prefix_(prefix) {
    for (const StepRef& ref : steps_of(plan)) {
      for_each_access(plan, ref.step->work, [&](const Access& access) {
        const Buffer& buffer = plan.buffers[idx(access.view->buffer)];
        if (!buffer.name.starts_with(prefix)) return;
        for (std::int64_t i = 0; i < ref.count; ++i) {
          if (access.reads) touch(*access.view, i, read_);
          if (access.writes) touch(*access.view, i, written_);
        }
      });
    }
  }

  bool all_are_read_once() const { return all_once(read_); }
  bool all_are_written_once() const { return all_once(written_); }

 private:
  using Counts = std::map<std::pair<BufferId, std::int64_t>, int>;

  static void touch(const View& view, std::int64_t iteration, Counts& counts) {
    for (std::int64_t n = 0; n < view.numel(); ++n) {
      std::int64_t rest = n, at = offset_at(view, iteration);
      for (std::size_t d = view.shape.size(); d-- > 0; rest /= view.shape[d])
        at += rest % view.shape[d] * view.strides[d];
      ++counts[{view.buffer, at}];
    }
  }
  bool all_once(const Counts& counts) const {
    std::size_t elements = 0;
    for (const Buffer& buffer : plan_.buffers)
      elements += buffer.name.starts_with(prefix_) ? idx(buffer.numel) : 0;
    return elements > 0 && counts.size() == elements &&
           std::all_of(counts.begin(), counts.end(), [](const auto& count) { return count.second == 1; });
  }

  const Plan& plan_;
  const std::string prefix_;
  Counts read_, written_;
};

}  // namespace cp::testing
