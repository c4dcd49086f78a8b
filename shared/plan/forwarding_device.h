// A ForwardingDevice is the base of devices that stand between the executor and another device, and watch or
// change one thing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/plan/device.h"

namespace cp {

// Forwards every call to the other device, which must outlive it.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& device) : device_(&device) {}

  Rank rank() const override { return device_->rank(); }
  const Target& target() const override { return device_->target(); }
  void prepare(const Plan& plan, const Bindings& bindings) override { device_->prepare(plan, bindings); }
  void launch(const StepRef& step, std::int64_t iteration) override { device_->launch(step, iteration); }
  EventId record(StreamId stream) override { return device_->record(stream); }
  void wait(StreamId stream, EventId event) override { device_->wait(stream, event); }
  void synchronize() override { device_->synchronize(); }
  void upload(BufferId buffer, std::span<const std::byte> host) override { device_->upload(buffer, host); }
  void download(BufferId buffer, std::span<std::byte> host) override { device_->download(buffer, host); }

  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override {
    return device_->keep(plan, bindings, lane);
  }
  void use(PreparedId prepared, const Bindings& changed) override { device_->use(prepared, changed); }
  void release(PreparedId prepared) override { device_->release(prepared); }
  bool has_happened(EventId event) override { return device_->has_happened(event); }
  void await(EventId event) override { device_->await(event); }
  void begin_run(CallerStream caller) override { device_->begin_run(caller); }
  void begin_run_after(std::span<const EventId> events) override { device_->begin_run_after(events); }
  void end_run(CallerStream caller, EventId end) override { device_->end_run(caller, end); }

 protected:
  // For a subclass that makes the other device itself: its constructor must call forward_to() before any
  // other function of the device is called.
  ForwardingDevice() = default;
  void forward_to(Device& device) { device_ = &device; }

 private:
  Device* device_ = nullptr;
};

}  // namespace cp
