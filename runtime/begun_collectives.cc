#include "runtime/begun_collectives.h"

#include <variant>

#include "shared/plan/canonical.h"

namespace cp::runtime {

std::vector<Digest> collective_digests(const Plan& plan) {
  std::vector<Digest> digests;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* collective = std::get_if<Collective>(&ref.step->work);
    digests.push_back(collective == nullptr
                          ? Digest{}
                          : Hasher().add(plan.inputs).add(canonical_digest(plan, *collective)).digest());
  }
  return digests;
}

Digest continued(const Digest& before, const Digest& collective) {
  return Hasher().add(before).add(collective).digest();
}

BegunCollectives::Point BegunCollectives::begin(const Digest& collective) {
  next_.digest = continued(next_.digest, collective);
  const Point begun = next_;
  ++next_.number, ++next_.sequence;
  return begun;
}

}  // namespace cp::runtime
