// How a number of a preset is known.
#pragma once

#include <string>
#include <string_view>

namespace cp::sim {

struct Source {
  std::string field;      // "gpu.hbm_gbps", "attention[2].tflops"
  std::string text;       // never empty
  bool borrowed = false;  // of another GPU, as a fraction of its peak
  bool operator==(const Source&) const = default;
};

// measured: a table of measurements is named (a .csv file); published: a data sheet or a paper; estimated: the text begins with
// "estimate" or "assumed"; borrowed: another GPU's.
enum class Origin { measured, published, estimated, borrowed };

// Of a source's text alone, where nothing is borrowed.
Origin origin_of(std::string_view text);
Origin origin_of(const Source& source);
bool was_measured(Origin origin);      // by somebody, on this hardware: measured or published
std::string to_string(Origin origin);  // "measured", ...

}  // namespace cp::sim
