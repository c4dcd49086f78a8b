// How a number of a preset is known. Whoever wrote the number says it in a field beside the number; it is
// never guessed from a text.
#pragma once

#include <cstdint>
#include <string>

namespace cp::sim {

// sim/cost/cluster/quantity.proto says when a figure is which.
enum class Origin : std::uint8_t { measured, published, estimated, assumed, borrowed };

// True for numbers of this very hardware and software: measured or published. All others are second-hand:
// estimated, assumed, or borrowed from another GPU. Second-hand numbers have wider intervals.
bool is_first_hand(Origin origin);
inline bool is_second_hand(Origin origin) { return !is_first_hand(origin); }
std::string to_string(Origin origin);  // "measured", ...

struct Provenance {
  Origin origin = Origin::assumed;
  // The data sheet, the table, or the reason; if the number is borrowed, also from where. Never empty.
  std::string source;
  bool operator==(const Provenance&) const = default;
};
std::string to_string(const Provenance& provenance);  // "measured: all_gather.txt"

struct Source {
  std::string field;  // "gpu.hbm_gbps", "attention[2].tflops"
  Provenance provenance;
  bool operator==(const Source&) const = default;
};
// A field without a source (nullptr) was set by a program. It is neither first-hand nor second-hand.
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
