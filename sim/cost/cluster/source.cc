#include "sim/cost/cluster/source.h"

#include "shared/base/text.h"

namespace cp::sim {

bool is_first_hand(Origin origin) { return origin == Origin::measured || origin == Origin::published; }

std::string to_string(Origin origin) {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::published:
      return "published";
    case Origin::estimated:
      return "estimated";
    case Origin::assumed:
      return "assumed";
    case Origin::borrowed:
      return "borrowed";
  }
  return "";
}

std::string to_string(const Provenance& provenance) {
  return str(to_string(provenance.origin), ": ", provenance.source);
}

}  // namespace cp::sim
