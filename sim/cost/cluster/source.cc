#include "sim/cost/cluster/source.h"

namespace cp::sim {

Origin origin_of(std::string_view text) {
  if (text.starts_with("estimate") || text.starts_with("assumed")) return Origin::estimated;
  return text.find(".csv") != std::string_view::npos ? Origin::measured : Origin::published;
}

Origin origin_of(const Source& source) {
  return source.borrowed ? Origin::borrowed : origin_of(std::string_view(source.text));
}

bool was_measured(Origin origin) { return origin == Origin::measured || origin == Origin::published; }

std::string to_string(Origin origin) {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::published:
      return "published";
    case Origin::estimated:
      return "estimated";
    case Origin::borrowed:
      return "borrowed";
  }
  return "";
}

}  // namespace cp::sim
