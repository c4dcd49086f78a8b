// Requests of serving, and whether the checker passes the plans of all ranks.
#pragma once

#include <gtest/gtest.h>

#include "shared/plan/check.h"
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

}  // namespace cp::testing
