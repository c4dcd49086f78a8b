#include "shared/plan/device.h"

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

[[noreturn]] void refuse(const Device& device) {
  throw InvalidInput(str("the device of rank ", device.rank(),
                         " keeps no plans; call prepare() before each plan, as execute() does"));
}

}  // namespace

PreparedId Device::keep(const Plan&, const Bindings&, LaneId) { refuse(*this); }
void Device::use(PreparedId, const Bindings&) { refuse(*this); }
void Device::release(PreparedId) { refuse(*this); }
bool Device::has_happened(EventId) { refuse(*this); }
void Device::await(EventId) { refuse(*this); }
void Device::begin_run(CallerStream) { refuse(*this); }
void Device::begin_run_after(std::span<const EventId>) { refuse(*this); }
void Device::end_run(CallerStream, EventId) { refuse(*this); }

}  // namespace cp
