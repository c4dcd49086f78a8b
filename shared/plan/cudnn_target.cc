#include "shared/plan/cudnn_target.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::string_view kWith = "+cudnn";

// What differs between the targets of versions.
struct Abilities {
  bool window_tail = true, packed = true;
  auto operator<=>(const Abilities&) const = default;  // NOLINT(modernize-use-nullptr): there is no pointer
};

Abilities abilities_of(std::span<const CudnnVersion> versions) {
  Abilities abilities;
  for (const CudnnVersion version : versions) {
    abilities.window_tail = abilities.window_tail && cudnn_can(version, CudnnAbility::left_bound_alone) &&
                            cudnn_can(version, CudnnAbility::left_bound_alone_above_1024_keys);
    abilities.packed = abilities.packed && cudnn_can(version, CudnnAbility::packed_backward);
  }
  return abilities;
}

// Targets are named after these. Each lacks something else than the others, and there is one for all that
// versions lack together: who has no packed calls has no such windows either.
constexpr std::array<CudnnVersion, 2> kNamed = {90800, 91400};

using Targets = std::map<std::pair<std::string, Abilities>, Target>;
Targets make_targets() {
  Targets targets;
  for (const std::string_view generation : {"sm80", "sm90", "sm100", "sm120"}) {
    for (const CudnnVersion version : kNamed) {
      const Target& recent = gpu_target(generation);
      const Abilities abilities = abilities_of(std::array{version});
      Target target = recent;
      target.name = str(recent.name, kWith, cudnn_version_text(version));
      target.fused_attention->window_tail = abilities.window_tail;
      target.fused_attention->packed = recent.fused_attention->packed && abilities.packed;
      targets.emplace(std::pair(recent.name, abilities), std::move(target));
    }
  }
  return targets;
}

}  // namespace

NamedCudnn split_target_name(std::string_view name) {
  const std::size_t at = name.find(kWith);
  if (at == std::string_view::npos) return {name, 0};
  std::string_view rest = name.substr(at + kWith.size());
  std::array<int, 3> parts{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), parts[i]);
    if (error != std::errc() || parts[i] < 0 || parts[i] > 99) return {name, 0};
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (i + 1 == parts.size()) break;
    if (!rest.starts_with('.')) return {name, 0};
    rest.remove_prefix(1);
  }
  const CudnnVersion version = parts[0] * 10000 + parts[1] * 100 + parts[2];
  if (!rest.empty() || version == 0) return {name, 0};
  return {name.substr(0, at), version};
}

const Target& gpu_target(std::string_view gpu, std::span<const CudnnVersion> versions) {
  static const Targets kTargets = make_targets();
  const Target& recent = gpu_target(split_target_name(gpu).gpu);
  const Abilities abilities = abilities_of(versions);
  if (abilities == Abilities{}) return recent;
  const auto found = kTargets.find({recent.name, abilities});
  CP_INVARIANT(found != kTargets.end(), "no target of ", recent.name, " lacks just what these versions lack");
  return found->second;
}

}  // namespace cp
