#include "sim/cost/cluster/provenance_proto.h"

#include <vector>

#include "shared/base/text.h"
#include "traces/enum_table.h"

namespace cp::sim {
namespace {

constexpr EnumTable<Origin, proto::Origin, 5> kOriginTable{{{Origin::measured, proto::measured},
                                                            {Origin::published, proto::published},
                                                            {Origin::estimated, proto::estimated},
                                                            {Origin::assumed, proto::assumed},
                                                            {Origin::borrowed, proto::borrowed}}};

}  // namespace

proto::Origin to_proto(Origin origin) { return kOriginTable.to_proto(origin); }

std::optional<Origin> from_proto(proto::Origin origin) {
  for (const auto& [ours, theirs] : kOriginTable.rows) {
    if (theirs == origin) return ours;
  }
  return std::nullopt;
}

std::string provenance_error(proto::Origin origin, std::string_view source) {
  // An unknown number is no missing one: who reads the text has refused it (traces/read_text.h).
  const bool no_source = trim(source).empty(), no_origin = origin == proto::origin_unspecified;
  std::vector<std::string> words;
  for (const auto& [ours, theirs] : kOriginTable.rows) words.push_back(to_string(ours));
  const std::string one_of = str("one of ", join(words, ", "));
  if (no_source && no_origin) {
    return str("has neither origin nor source; add, for example, origin: published source: \"data sheet\", ",
               "where origin is ", one_of);
  }
  if (no_source)
    return "has no source; add where it is from, or why it is so: for example, source: \"data sheet\"";
  return no_origin ? str("has no origin; add origin: and ", one_of) : "";
}

}  // namespace cp::sim
