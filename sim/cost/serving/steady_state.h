// A server in its steady state: so many requests are always under way, each with a prompt to read and tokens
// to write, and as soon as one is answered the next one comes. From the times of two things, a step that
// writes one token of each request and the reading of one prompt alone, follows what a token takes while
// others' prompts are read on the same GPUs.
//
// With c requests of I prompt tokens and O written ones, let s be the time of a step that only writes, TPOT
// the mean time between two tokens of a request, D = (O - 1) TPOT the time it writes, and L = TTFT + D its
// life. While one request lives each of the c - 1 others comes once, so that of their prompts (c - 1) D / L
// are read while it writes, and each of them makes it wait for e:
//
//     (O - 1) TPOT = (O - 1) s + e (c - 1) D / L
//
//   - beside (chunked prefill, in-flight batching): prompt and writing share a step. The I rows join the c
//     rows in every product, so that the step takes the prompt's time (I + c) / I, and the attention of those
//     that write on top: e = p (I + c) / I + a - s;
//   - apart (prompts first): nobody writes while a prompt is read: e = p.
//
// where p is the time of one prompt, a that of attention in s. A prompt waits for the step that runs when it
// comes, and for the prompts before it: by Pollaczek and Khinchine, a wait of u e / (2 (1 - u)) with u = e (c
// - 1) / L.
//
// Requests that all have the same lengths and come together stay together where prompts are read apart: all
// of them are read before anybody writes on, so that on average half of the others' prompts lie in a
// request's TTFT, and the other half in its D.
//
// The host needs h for a step, which grows with the requests in it: s is the longer of the two where it
// prepares the next step meanwhile, else their sum; and so is p of the one request that a prompt is.
#pragma once

#include <cstdint>

#include "sim/cost/cluster/software.h"

namespace cp::sim {

enum class Arrivals : std::uint8_t { spread, together };

struct ServingLoad {
  std::int64_t requests = 1;  // at once, of one replica
  std::int64_t prompt_tokens = 1, new_tokens = 1;
  Arrivals arrivals = Arrivals::spread;
};

// Of the GPUs of one replica, in us.
struct ServingStep {
  double decode_us = 0, decode_attention_us = 0;  // one token of each request; of that: attention
  double prompt_us = 0;                           // one prompt, alone
};

struct ServingTimes {
  double tpot_us = 0, ttft_us = 0;
  double host_us = 0;     // of the TPOT: the GPUs wait for the host
  double prompts_us = 0;  // of the TPOT: prompts of others
};

// Throws InvalidInput where requests or tokens are below 1.
ServingTimes steady_state(const ServingLoad& load, const ServingStep& step, const SoftwareProfile& software);

}  // namespace cp::sim
