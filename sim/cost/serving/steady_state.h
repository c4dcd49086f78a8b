// A server in its steady state. A fixed number of requests is always under way; each has a prompt to read and
// tokens to write, and when one is answered the next one comes. We know the times of two things: a step that
// writes one token of each request, and the reading of one prompt alone. From these follows how long a token
// takes while prompts of other requests are read on the same GPUs.
//
// With c requests of I prompt tokens and O written ones, let s be the time of a step that only writes, TPOT
// the mean time between two tokens of a request, D = (O - 1) TPOT the time it writes, and L = TTFT + D its
// life. While one request lives, each of the c - 1 others comes once. So (c - 1) D / L of their prompts are
// read while it writes, and each of them makes it wait for a time e:
//
//     (O - 1) TPOT = (O - 1) s + e (c - 1) D / L
//
//   - beside (chunked prefill, in-flight batching): prompt and writing share a step. The I rows join the c
//     rows in every product, so the step takes (I + c) / I times the prompt's time, and the attention of
//     those that write is added: e = p (I + c) / I + a - s;
//   - apart (prompts first): nobody writes while a prompt is read: e = p.
//
// Here p is the time of one prompt, and a that of attention in s. A prompt waits for the step that runs when
// it comes, and for the prompts before it: the formula of Pollaczek and Khinchine gives a wait of
// u e / (2 (1 - u)) with u = e (c - 1) / L.
//
// Requests that all have the same lengths and come together stay together if prompts are read apart. All of
// them are read before anybody writes on. So on average half of the others' prompts lie in a request's TTFT,
// and the other half in its D.
//
// The host needs a time h for a step, which grows with the number of requests in it. If the host prepares the
// next step while the GPUs work, s is the longer of the two times, and else their sum. The same holds for p,
// with the one request that a prompt is.
#pragma once

#include <cstdint>

#include "sim/cost/cluster/software.h"

namespace cp::sim {

// spread: requests come one by one. together: all come at the same time.
enum class Arrivals : std::uint8_t { spread, together };

struct ServingLoad {
  std::int64_t requests = 1;  // under way at once, on one replica
  std::int64_t prompt_tokens = 1, new_tokens = 1;
  Arrivals arrivals = Arrivals::spread;
};

// Times of the GPUs of one replica, in us.
struct ServingStep {
  double decode_us = 0, decode_attention_us = 0;  // one token of each request; the attention in it
  double prompt_us = 0;                           // one prompt, alone
};

struct ServingTimes {
  double tpot_us = 0, ttft_us = 0;
  // The part of the TPOT in which the GPUs wait for the host.
  double host_us = 0;
  // The part of the TPOT in which others' prompts are read.
  double prompts_us = 0;
};

// Solves the equations above. Throws InvalidInput if requests or tokens are below 1.
ServingTimes steady_state(const ServingLoad& load, const ServingStep& step, const SoftwareProfile& software);

}  // namespace cp::sim
