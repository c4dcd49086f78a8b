#include "runtime/gloo/progress_reporter.h"

#include "shared/base/text.h"
#include "shared/plan/canonical.h"
#include "shared/plan/operations.h"

namespace cp::runtime {

void ProgressReporter::operator()(const CollectiveBegin& begin) {
  const std::string group = str(begin.group.name, "[", join(begin.group.ranks), "]");
  const Digest own = canonical_digest(begin.plan, begin.collective);
  const std::lock_guard lock(mutex_);
  Digest& so_far = digests_[group];
  Hasher hasher;
  so_far = hasher.add(so_far).add(own).digest();
  client_.set_progress(group, begin.number, operation_name(begin.collective), so_far);
}

}  // namespace cp::runtime
