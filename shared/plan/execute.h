// The executor on one plan at a time, on any Device: prepare, run, forget. A program that runs plans again
// and again, or beside work of its own, keeps them (prepared_plan.h). Enqueuer (enqueuer.h) is the loop of
// both.
#pragma once

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp {

// Prepares the device and enqueues all steps, with their edges as events. It does not synchronize: the caller
// does, and gets the errors of running work then. If `trace` is given, the executor records every step that
// it launches in the `issued` section.
void enqueue(const Plan& plan, Device& device, const Bindings& bindings = {}, RankTrace* trace = nullptr);

// Calls enqueue(), and then synchronizes the device.
void execute(const Plan& plan, Device& device, const Bindings& bindings = {}, RankTrace* trace = nullptr);

// Enqueues the steps alone, on a device that was prepared for this plan before. Callers need it that upload
// data between the two, or that run a plan again.
void enqueue_steps(const Plan& plan, Device& device, RankTrace* trace = nullptr);

}  // namespace cp
