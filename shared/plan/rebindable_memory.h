// RebindableMemory: the host memory of a plan whose buffers are bound anew from run to run, while earlier
// runs may still be under way with the addresses that they began with.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

class RebindableMemory {
 public:
  // The memory as one set of bindings makes it, and how many launches with it have not finished. The device
  // counts up before it enqueues a launch, and down behind it, on any thread.
  struct Version {
    HostMemory memory;
    std::atomic<std::int64_t> under_way{0};

    explicit Version(HostMemory made) : memory(std::move(made)) {}
  };

  // `memory` is that of the plan, which must outlive this.
  RebindableMemory(const Plan& plan, HostMemory memory);

  // Binds buffers anew for the launches from here on. Allocates only where more runs with different addresses
  // are under way than ever before. Throws InvalidInput as HostMemory does, and changes nothing then.
  void bind(const Bindings& changed);

  // What launches from here on use; it stays where it is for as long as this lives.
  Version& current() { return *versions_[current_]; }
  const HostMemory& memory() const { return versions_[current_]->memory; }

  // Puts the plan's temporaries into `arena`, as HostMemory does. Nothing may be under way.
  void move_to(const std::shared_ptr<HostArena>& arena);

  // The memory itself, for the plan that is next; this is of no use behind it, and nothing may be under way.
  HostMemory take();

 private:
  const Plan* plan_;
  std::vector<std::unique_ptr<Version>> versions_;  // the first one owns the memory
  std::size_t current_ = 0;
};

}  // namespace cp
