#include "cli/cprun/nccl_options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/read_software.h"

namespace cp::cli {
namespace {

constexpr int kMostCtas = runtime::NcclCommOptions::kMostCtas;
constexpr std::array<std::string_view, 2> kPolicies = {"default", "efficiency"};  // NCCL_CTA_POLICY_*

int ctas(const char* field, int value) {
  if (value >= 1 && value <= kMostCtas) return value;
  throw InvalidInput(
      str("the scenario's nccl.", field, ": ", value, " is out of range; use 1 to ", kMostCtas));
}

}  // namespace

runtime::NcclCommOptions nccl_options(const proto::Nccl& nccl, const std::string& software) {
  runtime::NcclCommOptions options;
  if (!software.empty() && !nccl.has_min_ctas() && !nccl.has_max_ctas()) {
    const auto max_ctas = static_cast<int>(sim::find_software(software).max_ctas);
    if (max_ctas > 0) options.max_ctas = max_ctas;
  }
  if (nccl.has_min_ctas()) options.min_ctas = ctas("min_ctas", nccl.min_ctas());
  if (nccl.has_max_ctas()) options.max_ctas = ctas("max_ctas", nccl.max_ctas());
  if (options.min_ctas && options.max_ctas && *options.min_ctas > *options.max_ctas) {
    throw InvalidInput(str("the scenario's nccl.min_ctas: ", *options.min_ctas,
                           " is more than its max_ctas: ", *options.max_ctas,
                           "; use min_ctas: ", *options.max_ctas, " or less"));
  }
  if (nccl.cta_policy() == "zero") {
    throw InvalidInput(
        "the scenario's nccl.cta_policy: \"zero\" is that of the groups whose plans promise memory with "
        "equal "
        "offsets on all ranks, and has no effect on others; use attention { transfers: \"copy_engine\" }, or "
        "\"efficiency\" with register_buffers: true");
  }
  if (!nccl.cta_policy().empty()) {
    const auto policy = std::find(kPolicies.begin(), kPolicies.end(), nccl.cta_policy());
    if (policy == kPolicies.end()) {
      throw InvalidInput(str("the scenario's nccl.cta_policy: \"", nccl.cta_policy(),
                             "\" is unknown; use one of ", join(kPolicies, ", ")));
    }
    options.cta_policy = static_cast<int>(policy - kPolicies.begin());
  }
  options.register_buffers = nccl.register_buffers();
  return options;
}

}  // namespace cp::cli
