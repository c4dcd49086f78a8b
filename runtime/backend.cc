#include "runtime/backend.h"

#include "runtime/gloo/gloo_backend.h"
#include "runtime/nccl/nccl_backend.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {

const std::vector<Backend>& backends() {
  static const auto& all = *new std::vector<Backend>{gloo_backend(), nccl_backend()};
  return all;
}

const Backend& find_backend(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Backend& backend : backends()) {
    if (backend.name == name) return backend;
    names.push_back(backend.name);
  }
  throw InvalidInput(str("'", name, "' is not a backend; use ", cp::join(names, " or ")));
}

const Backend& require_backend(std::string_view name) {
  const Backend& backend = find_backend(name);
  if (!backend.why_not.empty()) throw InvalidInput(backend.why_not);
  return backend;
}

std::map<std::string, std::string> library_versions(std::string_view name) {
  const Backend& backend = find_backend(name);
  return backend.versions == nullptr ? std::map<std::string, std::string>{} : backend.versions();
}

}  // namespace cp::runtime
