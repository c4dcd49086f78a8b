#include "shared/plan/bindings.h"

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
void check_binding(const Plan& plan, const Binding& binding) {
  if (binding.buffer < 0 || static_cast<std::size_t>(binding.buffer) >= plan.buffers.size()) {
    throw InvalidInput(str("a binding is for buffer ", binding.buffer, ", but the plan has ",
                           plan.buffers.size(), " buffers"));
  }
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(binding.buffer)];
  if (buffer.kind == BufferKind::temporary) {
    throw InvalidInput(
        str("a binding is for the temporary ", buffer.name, "; bind only inputs, outputs and inouts"));
  }
  if (binding.size_bytes != buffer.bytes() || (binding.data == nullptr && binding.size_bytes != 0)) {
    throw InvalidInput(str("a binding has ", binding.data == nullptr ? 0 : binding.size_bytes,
                           " bytes, but its buffer ", buffer.name, " has ", buffer.bytes(), " bytes (",
                           buffer.numel, " x ", name(buffer.dtype), ")"));
  }
}

std::vector<std::byte*> bound_addresses(const Plan& plan, const Bindings& bindings) {
  std::vector<std::byte*> addresses(plan.buffers.size());
  for (const Binding& binding : bindings) {
    check_binding(plan, binding);
    std::byte*& address = addresses[static_cast<std::size_t>(binding.buffer)];
    if (address != nullptr) {
      throw InvalidInput(str("buffer ", plan.buffers[static_cast<std::size_t>(binding.buffer)].name,
                             " has two bindings; give it one"));
    }
    address = static_cast<std::byte*>(binding.data);
  }
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary) continue;
    if (buffer.offset_bytes < 0 || buffer.offset_bytes > plan.arena_bytes - buffer.bytes()) {
      throw InvalidInput(str("temporary ", buffer.name, " [", buffer.offset_bytes, ", ",
                             buffer.offset_bytes + buffer.bytes(), ") lies outside of the arena of ",
                             plan.arena_bytes, " bytes; PlanBuilder::build() places it"));
    }
  }
  return addresses;
}

void check_host_copy(const Plan& plan, std::string_view what, BufferId buffer, std::size_t host_bytes) {
  if (buffer < 0 || buffer >= static_cast<BufferId>(plan.buffers.size()))
    throw InvalidInput(str(what, " of buffer ", buffer, ": the plan has ", plan.buffers.size(), " buffers"));
  const Buffer& declared = plan.buffers[static_cast<std::size_t>(buffer)];
  if (declared.kind == BufferKind::temporary) {
    throw InvalidInput(str(what, " of ", declared.name,
                           ": it is a temporary; only inputs, outputs and inouts are the caller's"));
  }
  if (static_cast<std::size_t>(declared.bytes()) != host_bytes) {
    throw InvalidInput(
        str(what, " of ", host_bytes, " bytes: buffer ", declared.name, " has ", declared.bytes(), " bytes"));
  }
}

void refuse_callers_stream(CallerStream caller, const Device& device, std::string_view name) {
  if (caller == nullptr) return;
  throw InvalidInput(str("a run on the ", name, " device of rank ", device.rank(),
                         " has a stream of its caller's, and the device works in host memory, without such "
                         "streams; use nullptr, and wait for the run"));
}

void refuse_foreign_plan(const Plan& plan, const Device& device, std::string_view name) {
  if (plan.self != device.rank()) {
    throw InvalidInput(str("the plan of rank ", plan.self, " cannot run on the ", name, " device of rank ",
                           device.rank(), "; a device runs the plans of its own rank"));
  }
  const Target& target = device.target();
  const auto the_device = [&] { return str("the ", name, " device of rank ", device.rank()); };
  for (const Buffer& buffer : plan.buffers) {
    if (target.dtypes.contains(buffer.dtype)) continue;
    std::vector<std::string_view> has;
    for (const DType dtype : target.dtypes) has.push_back(cp::name(dtype));
    throw InvalidInput(str(the_device(), " has no ", cp::name(buffer.dtype), " (buffer ", buffer.name,
                           "); its target ", target.name, " has ", join(has, ", ")));
  }
  for (const StepRef& ref : steps_of(plan)) {
    if (has_operation(target, ref.step->work)) continue;
    throw InvalidInput(str(the_device(), " has no operation ", operation_words(ref.step->work), " (step ",
                           ref.id, " \"", ref.step->label, "\"); its target ", target.name, " has ",
                           join(is_collective(*ref.step) ? target.collectives : target.kernels, ", ")));
  }
}

}  // namespace cp
