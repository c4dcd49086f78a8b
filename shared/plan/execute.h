// The executor: the only loop that runs plans, on any Device.
#pragma once

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp {

// Prepares the device, then enqueues all steps with their edges as events; does not synchronize. When `trace`
// is given, its `issued` section records every step as the executor asks for it.
void enqueue(const Plan& plan, Device& device, const Bindings& bindings = {}, RankTrace* trace = nullptr);

// enqueue, then synchronize.
void execute(const Plan& plan, Device& device, const Bindings& bindings = {}, RankTrace* trace = nullptr);

// The steps alone, on a device that was prepared for this plan: for callers that upload in between, or run a
// plan again.
void enqueue_steps(const Plan& plan, Device& device, RankTrace* trace = nullptr);

}  // namespace cp
