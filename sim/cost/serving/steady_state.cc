#include "sim/cost/serving/steady_state.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

// TPOT and TTFT depend on one another, so we repeat the two equations of the header until the TPOT settles.
// It has settled when a round changes it by less than any digit that is printed; kRounds only bounds the
// loop, should it ever not settle.
constexpr int kRounds = 200;
constexpr double kSettled = 1e-12;
// The wait u e / (2 (1 - u)) grows without end as u nears 1. That is no steady state of ours: requests come
// only as others are answered, so a server that is so busy catches up. Beyond this share of time we keep the
// wait of 0.95, which is 9.5 e. The figure is a cap that was set, not measured; steady_state_test.cc compares
// the result with a server that is followed step by step.
constexpr double kBusiest = 0.95;

void require(std::int64_t value, const char* what) {
  if (value < 1) throw InvalidInput(str(what, " ", value, " is out of range; use 1 or more"));
}

double on_gpus_and_host(double gpu_us, double host_us, const SoftwareProfile& software) {
  return software.host_ahead ? std::max(gpu_us, host_us) : gpu_us + host_us;
}

}  // namespace

ServingTimes steady_state(const ServingLoad& load, const ServingStep& step, const SoftwareProfile& software) {
  require(load.requests, "requests");
  require(load.prompt_tokens, "prompt tokens");
  require(load.new_tokens, "new tokens");
  const auto requests = static_cast<double>(load.requests), others = requests - 1;
  const auto steps = std::max(1.0, static_cast<double>(load.new_tokens - 1));
  const auto host_of = [&](double in_step) {
    return software.step_host_us + in_step * software.request_host_us;
  };
  const double host_us = host_of(requests), alone_us = on_gpus_and_host(step.decode_us, host_us, software),
               prompt_us = on_gpus_and_host(step.prompt_us, host_of(1), software);
  ServingTimes times;
  times.host_us = alone_us - step.decode_us;
  if (software.prompts_apart && load.arrivals == Arrivals::together) {
    // All prompts are read before anybody writes on: half of the others' come before a request's own, and the
    // other half between its first token and its second, which its steps share.
    times.prompts_us = others / 2 * prompt_us / steps;
    times.tpot_us = alone_us + times.prompts_us;
    times.ttft_us = prompt_us + others / 2 * prompt_us;
    return times;
  }
  // (I + c) / I: the prompt's rows and the requests' rows go through the same products.
  const double share = 1 + requests / static_cast<double>(load.prompt_tokens);
  const double beside_us =
      on_gpus_and_host(step.prompt_us * share + step.decode_attention_us, host_us, software);
  const double extra_us = software.prompts_apart ? prompt_us : std::max(0.0, beside_us - alone_us);
  const double read_us = software.prompts_apart ? prompt_us : beside_us;
  times.tpot_us = alone_us;
  for (int round = 0; round < kRounds; ++round) {
    const double life_us = times.ttft_us + steps * times.tpot_us;
    const double busy = std::min(kBusiest, extra_us * others / life_us);
    // One's own prompt, on average half of the step that runs when it comes, and the prompts that wait before
    // it.
    times.ttft_us = read_us + (others > 0 ? alone_us / 2 : 0) + busy / (1 - busy) / 2 * extra_us;
    const double before_us = times.tpot_us;
    times.tpot_us = alone_us + extra_us * others * times.tpot_us / (times.ttft_us + steps * times.tpot_us);
    if (std::abs(times.tpot_us - before_us) <= kSettled * before_us) break;
  }
  times.prompts_us = times.tpot_us - alone_us;
  return times;
}

}  // namespace cp::sim
