#include "shared/context_parallel/cores.h"

#include <array>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/context_parallel/core.h"

namespace cp {
namespace {

constexpr std::array kCores = {&detail::kAllGatherCore, &detail::kRingCore, &detail::kNeedOnlyCore,
                               &detail::kPassQCore};

}  // namespace

std::span<const CoreFacts* const> all_cores() { return kCores; }

const CoreFacts& facts(Core core) {
  const auto at = static_cast<std::size_t>(core);
  CP_INVARIANT(at < kCores.size() && kCores[at]->core == core, "core ", at,
               " has no row at its place in cores.cc");
  return *kCores[at];
}

bool arrives_in_turn(const Strategy& strategy, int cp) {
  const CoreFacts& core = facts(strategy.core);
  return cp > strategy.ulysses_degree && core.rotates != Rotates::nothing &&
         !(core.has_rotation && strategy.rotation == Strategy::Rotation::all_gather);
}

std::string_view name(Core core) { return facts(core).name; }

Core parse_core(std::string_view text) {
  std::vector<std::string_view> names;
  for (const CoreFacts* facts : all_cores()) {
    if (facts->name == text) return facts->core;
    names.push_back(facts->name);
  }
  throw InvalidInput(str("there is no core '", text, "'; use one of ", join(names, ", "), "; the nearest is ",
                         nearest_name(text, names)));
}

}  // namespace cp
