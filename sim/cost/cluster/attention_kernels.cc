#include "sim/cost/cluster/attention_kernels.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {
namespace {

void add(const std::string& name, std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

std::vector<std::string> attention_kernels(const Cluster& cluster, int bits) {
  std::vector<std::string> names;
  const auto add_curves = [&](bool borrowed) {
    for (std::size_t i = 0; i < cluster.attention.size(); ++i) {
      const Source* source = cluster.source_of(str("attention[", i, "].tflops"));
      if (is_borrowed(source) == borrowed) add(cluster.attention[i].kernel, names);
    }
  };
  if (bits == 16) add_curves(false);
  for (const AttentionRate& rate : cluster.rates.attention) {
    if (rate.bits == bits) add(rate.kernel, names);
  }
  if (bits == 16) add_curves(true);
  return names;
}

std::string chosen_kernel(const Cluster& cluster, std::string_view names, int bits) {
  const std::vector<std::string> known = attention_kernels(cluster, bits);
  if (known.empty()) return "";
  for (const std::string_view each : split(names, ',')) {
    const std::string_view name = trim(each);
    if (name == "any") break;
    if (std::find(known.begin(), known.end(), name) != known.end()) return std::string(name);
  }
  return known.front();
}

SoftwareProfile with_attention_kernel(SoftwareProfile software, const Cluster& cluster,
                                      const std::string& kernel) {
  const std::vector<std::string> known = attention_kernels(cluster);
  if (known.empty()) {
    throw InvalidInput(str("attention kernel '", kernel, "': ", cluster.name,
                           " has neither a curve nor a rate of any kernel; leave it out, so that attention "
                           "takes a share of the peak"));
  }
  if (std::find(known.begin(), known.end(), kernel) == known.end()) {
    const std::vector<std::string_view> views(known.begin(), known.end());
    throw InvalidInput(str("attention kernel '", kernel, "': ", cluster.name, " (", cluster.gpu.name,
                           ") has no curve and no rate of it; the nearest one is '",
                           nearest_name(kernel, views), "'; use one of ", join(known, ", ")));
  }
  software.attention_kernel = kernel;
  set_source(software.sources, {"attention_kernel", {Origin::assumed, "the user's choice"}});
  return software;
}

bool has_attention_8(const Cluster& cluster) { return !attention_kernels(cluster, 8).empty(); }

SoftwareProfile with_attention_8(SoftwareProfile software, const Cluster& cluster) {
  const std::vector<std::string> known = attention_kernels(cluster, 8);
  const std::string wanted = chosen_kernel(cluster, software.attention_kernel);
  if (known.empty()) {
    throw InvalidInput(str(cluster.name, " (", cluster.gpu.name, ") has no rate of attention in 8 bits",
                           wanted.empty() ? "" : str(", only of ", wanted, " in 16"), "; use 16 bits"));
  }
  if (std::find(known.begin(), known.end(), wanted) == known.end()) {
    throw InvalidInput(str(cluster.name, " (", cluster.gpu.name, ") has no rate of ", wanted, ", which ",
                           software.name, " runs, in 8 bits; it has them of ", join(known, ", "),
                           ": use --kernels ", known.front(), ", or 16 bits"));
  }
  software.attention_kernel = wanted;
  software.attention_precision = LinearPrecision::fp8;
  return software;
}

}  // namespace cp::sim
