// HostMemory is the memory of one prepared plan, for devices whose kernels run on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

// Where the temporaries of one plan are, or of several plans whose runs follow one another.
struct HostArena {
  std::unique_ptr<std::byte[]> bytes;
  std::int64_t size_bytes = 0;
};

class HostMemory {
 public:
  // Allocates the arena, and those of the caller's buffers that have no binding. Fresh memory is filled with
  // the byte 0xFB (a huge negative number in every floating type, and a negative integer), so that a read of
  // what was never written shows. Throws InvalidInput if the size of a binding differs from that of its
  // buffer.
  //
  // `before` is the memory of a plan that has ended. Its arena, if it is large enough, and its buffers of
  // equal size are used again, with what they hold. So a plan that is prepared again with its own memory
  // allocates nothing. What cannot be used is released before anything is allocated.
  HostMemory(const Plan& plan, const Bindings& bindings, std::optional<HostMemory> before = {});
  // The same with the arena `shared`, which other plans use too whose runs and this one's follow one another.
  // If it is null or too small, the arena is a new one.
  HostMemory(const Plan& plan, const Bindings& bindings, std::shared_ptr<HostArena> shared);
  // Memory that owns nothing, for a device of whose buffers some lie on the host: set_address() says where.
  static HostMemory without_addresses(const Plan& plan);

  const std::shared_ptr<HostArena>& arena() const { return arena_; }
  // Puts the plan's temporaries into `arena`, which is not smaller than theirs; what they hold is lost.
  void move_to(const Plan& plan, std::shared_ptr<HostArena> arena);

  // The first byte of the view in the given iteration.
  std::byte* at(const View& view, std::int64_t iteration) const;
  DType dtype(const View& view) const;
  std::span<std::byte> bytes(BufferId buffer) const;

  // For RebindableMemory: memory with the same addresses that owns nothing: the owner must outlive it.
  HostMemory with_same_addresses() const;
  void copy_addresses(const HostMemory& other) { places_ = other.places_; }  // of the same plan
  void set_address(BufferId buffer, std::byte* data);

 private:
  HostMemory() = default;

  struct Place {
    std::byte* data = nullptr;
    std::int64_t size_bytes = 0;
    DType dtype = DType::f32;
  };
  struct Owned {
    std::unique_ptr<std::byte[]> bytes;
    std::int64_t size_bytes = 0;
  };
  HostMemory(const Plan& plan, const Bindings& bindings, std::shared_ptr<HostArena> arena,
             std::vector<Owned> before);
  void take_owned(const std::vector<std::int64_t>& sizes, std::vector<Owned> before);
  // Gives the temporary buffers their addresses in the arena.
  void place_temporaries(const Plan& plan);

  std::shared_ptr<HostArena> arena_;  // as large as the plan's, or larger
  std::vector<Owned> owned_;          // buffers of the caller without a binding, in the plan's order
  std::vector<Place> places_;
};

}  // namespace cp
