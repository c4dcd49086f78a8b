// How a number of a preset is known.
#pragma once

#include <string>

namespace cp::sim {

struct Source {
  std::string field;      // "gpu.hbm_gbps", "attention[2].tflops"
  std::string text;       // never empty
  bool borrowed = false;  // of another GPU, as a fraction of its peak
  bool operator==(const Source&) const = default;
};

}  // namespace cp::sim
