#include "sim/cost/presets/embedded.h"

#include "shared/base/error.h"
#include "shared/base/nearest.h"

namespace cp::sim {

std::vector<std::string> names_of(std::span<const EmbeddedText> texts) {
  std::vector<std::string> names;
  for (const EmbeddedText& text : texts) names.emplace_back(text.name);
  return names;
}

const EmbeddedText& find_embedded(std::span<const EmbeddedText> texts, std::string_view name,
                                  std::string_view kind, std::string_view otherwise) {
  std::vector<std::string> names;
  for (const EmbeddedText& text : texts) {
    if (text.name == name) return text;
    names.emplace_back(text.name);
  }
  const std::string near = nearest(name, names);
  throw InvalidInput(str("unknown ", kind, " '", name, "'; ",
                         near.empty() ? "" : str("the nearest one is '", near, "'; "), "use one of ",
                         join(names, ", "), otherwise));
}

}  // namespace cp::sim
