#include "shared/plan/host_place.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "shared/base/index.h"

namespace cp {

KernelPlace place_of(const Kernel& kernel, const Plan& plan) {
  const auto on_host = [&](const View& view) { return lies_on_host(plan.buffers[idx(view.buffer)]); };
  if (const auto* copy = std::get_if<Copy>(&kernel)) {
    const bool from = on_host(copy->in), to = on_host(copy->out);
    return from && to ? KernelPlace::host : from || to ? KernelPlace::host_copy : KernelPlace::gpu;
  }
  const auto* rows = std::get_if<RowKernel>(&kernel);
  if (rows == nullptr) return KernelPlace::gpu;
  const auto all = [&](const std::vector<View>& views) {
    return std::all_of(views.begin(), views.end(), on_host);
  };
  return all(rows->reads) && all(rows->writes) && all(rows->updates) ? KernelPlace::host : KernelPlace::gpu;
}

}  // namespace cp
