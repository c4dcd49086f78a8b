#include "shared/plan/rebindable_memory.h"

#include <algorithm>
#include <utility>

#include "shared/plan/bindings.h"

namespace cp {

RebindableMemory::RebindableMemory(const Plan& plan, HostMemory memory) : plan_(&plan) {
  versions_.push_back(std::make_unique<Version>(std::move(memory)));
}

void RebindableMemory::bind(const Bindings& changed) {
  bool differs = false;
  for (const Binding& binding : changed) {
    check_binding(*plan_, binding);
    differs |= memory().bytes(binding.buffer).data() != binding.data;
  }
  if (!differs) return;
  const auto is_free = [](const auto& version) { return version->under_way.load() == 0; };
  // The one in use is preferred: most programs wait for a run before they begin the next one.
  std::size_t next = current_;
  if (!is_free(versions_[next])) {
    const auto found = std::find_if(versions_.begin(), versions_.end(), is_free);
    next = static_cast<std::size_t>(found - versions_.begin());
    if (found == versions_.end()) {
      versions_.push_back(std::make_unique<Version>(memory().with_same_addresses()));
    } else {
      versions_[next]->memory.copy_addresses(memory());
    }
  }
  current_ = next;
  for (const Binding& binding : changed)
    versions_[current_]->memory.set_address(binding.buffer, static_cast<std::byte*>(binding.data));
}

void RebindableMemory::move_to(const std::shared_ptr<HostArena>& arena) {
  for (const auto& version : versions_) version->memory.move_to(*plan_, arena);
}

HostMemory RebindableMemory::take() { return std::move(versions_.front()->memory); }

}  // namespace cp
