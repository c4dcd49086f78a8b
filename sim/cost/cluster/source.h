// How a number of a preset is known: said by whoever wrote it, as a field beside the number, and never read
// out of a text.
#pragma once

#include <cstdint>
#include <string>

namespace cp::sim {

// sim/cost/cluster/quantity.proto says when a figure is which.
enum class Origin : std::uint8_t { measured, published, estimated, assumed, borrowed };

// Of this hardware and software, by somebody who looked: measured or published. What is second-hand instead
// was estimated, assumed or taken over from another GPU, and its intervals are wider.
bool is_first_hand(Origin origin);
inline bool is_second_hand(Origin origin) { return !is_first_hand(origin); }
std::string to_string(Origin origin);  // "measured", ...

struct Provenance {
  Origin origin = Origin::assumed;
  std::string source;  // the data sheet, the table, or why; of what is borrowed also from where. Never empty
  bool operator==(const Provenance&) const = default;
};
std::string to_string(const Provenance& provenance);  // "measured: all_gather.txt"

struct Source {
  std::string field;  // "gpu.hbm_gbps", "attention[2].tflops"
  Provenance provenance;
  bool operator==(const Source&) const = default;
};
// A field without a source, nullptr, was set by a program and is neither.
inline bool is_first_hand(const Source* source) {
  return source != nullptr && is_first_hand(source->provenance.origin);
}
inline bool is_second_hand(const Source* source) {
  return source != nullptr && is_second_hand(source->provenance.origin);
}
inline bool is_borrowed(const Source* source) {
  return source != nullptr && source->provenance.origin == Origin::borrowed;
}

}  // namespace cp::sim
