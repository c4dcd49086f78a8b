// What a run on the fabric found, as an error.
#pragma once

#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/pass_traces.h"

namespace cp::sim {

// Throws CheckFailure with the first verdict or error that does not hold.
inline void require_exact(const std::vector<Verdict>& verdicts, const std::vector<TensorError>& errors) {
  for (const Verdict& verdict : verdicts) {
    if (!verdict.holds)
      throw CheckFailure(str("on the simulated fabric, ", verdict.name, ": ", verdict.finding));
  }
  for (const TensorError& error : errors) {
    if (!error.holds())
      throw CheckFailure(str("on the simulated fabric, ", error.tensor, ": ", error.finding));
  }
}

}  // namespace cp::sim
