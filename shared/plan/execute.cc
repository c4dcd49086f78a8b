#include "shared/plan/execute.h"

#include "shared/plan/enqueuer.h"

namespace cp {

void enqueue(const Plan& plan, Device& device, const Bindings& bindings, RankTrace* trace) {
  device.prepare(plan, bindings);
  enqueue_steps(plan, device, trace);
}

void execute(const Plan& plan, Device& device, const Bindings& bindings, RankTrace* trace) {
  enqueue(plan, device, bindings, trace);
  device.synchronize();
}

void enqueue_steps(const Plan& plan, Device& device, RankTrace* trace) { Enqueuer(plan, device).run(trace); }

}  // namespace cp
