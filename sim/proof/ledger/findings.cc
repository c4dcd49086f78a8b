#include "sim/proof/ledger/findings.h"

#include "shared/base/text.h"

namespace cp::sim {

std::string Findings::summary() const {
  const auto rest = count_ - static_cast<std::int64_t>(texts_.size());
  return str(join(texts_, "; "), rest > 0 ? str("; and ", rest, " more") : "");
}

}  // namespace cp::sim
