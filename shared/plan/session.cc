#include "shared/plan/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/bindings.h"
#include "shared/plan/execute.h"

namespace cp {
namespace {

const Buffer& buffer_at(const Plan& plan, BufferId id) {
  return plan.buffers.at(static_cast<std::size_t>(id));
}

bool is_read(const Buffer& buffer) {
  return buffer.kind == BufferKind::input || buffer.kind == BufferKind::inout;
}

bool is_written(const Buffer& buffer) {
  return buffer.kind == BufferKind::output || buffer.kind == BufferKind::inout;
}

std::vector<BufferId> buffers_that(const Plan& plan, bool (*wanted)(const Buffer&)) {
  std::vector<BufferId> ids;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (wanted(plan.buffers[i])) ids.push_back(static_cast<BufferId>(i));
  }
  return ids;
}

// The device checks what is bound to it; of what is copied it sees one buffer at a time, and only once the
// plan is prepared.
Bindings to_copy(const Plan& plan, const HostBuffers& buffers) {
  if (buffers.bound) return {};
  bound_addresses(plan, buffers.bindings);
  return buffers.bindings;
}

}  // namespace

PlanSession::PlanSession(Device& device, const Plan& plan, const Bindings& bindings)
    : device_(device), plan_(plan) {
  device_.prepare(plan_, bindings);
}

PlanSession::PlanSession(Device& device, const Plan& plan, const HostBuffers& buffers, bool kept)
    : device_(device), plan_(plan), copied_(to_copy(plan, buffers)) {
  const Bindings bindings = buffers.bound ? buffers.bindings : Bindings{};
  if (kept) {
    kept_.emplace(device_, plan_, bindings);
  } else {
    device_.prepare(plan_, bindings);
  }
}

std::vector<BufferId> PlanSession::inputs() const { return buffers_that(plan_, is_read); }
std::vector<BufferId> PlanSession::outputs() const { return buffers_that(plan_, is_written); }

void PlanSession::upload(BufferId buffer, std::span<const std::byte> host) {
  kept_ ? kept_->upload(buffer, host) : device_.upload(buffer, host);
}
void PlanSession::download(BufferId buffer, std::span<std::byte> host) {
  kept_ ? kept_->download(buffer, host) : device_.download(buffer, host);
}

std::vector<std::byte> PlanSession::download(BufferId buffer) {
  std::vector<std::byte> host(static_cast<std::size_t>(buffer_at(plan_, buffer).bytes()));
  download(buffer, host);
  return host;
}

void PlanSession::upload() {
  for (const Binding& copied : copied_) {
    if (!is_read(buffer_at(plan_, copied.buffer))) continue;
    upload(copied.buffer,
           {static_cast<const std::byte*>(copied.data), static_cast<std::size_t>(copied.size_bytes)});
  }
}

void PlanSession::download() {
  for (const Binding& copied : copied_) {
    if (!is_written(buffer_at(plan_, copied.buffer))) continue;
    download(copied.buffer,
             {static_cast<std::byte*>(copied.data), static_cast<std::size_t>(copied.size_bytes)});
  }
}

RunTimes PlanSession::run(const RunOptions& options) {
  if (options.iterations < 1 || options.warm_up < 0) {
    throw InvalidInput(str("the plan would run ", options.iterations, " times after ", options.warm_up,
                           " warm-up runs; use at least 1 run, and 0 or more warm-up runs"));
  }
  if (options.warm_up > 0) warm_up(options.warm_up);
  if (options.ready) options.ready();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (int i = 0; i < options.iterations; ++i) enqueue(options.trace);
  RunTimes times;
  times.issue_seconds = elapsed();
  if (options.issued) options.issued();
  device_.synchronize();
  times.seconds = elapsed();
  return times;
}

// Inouts change with every run, and the runs that count begin with what the caller gave.
void PlanSession::warm_up(int runs) {
  std::vector<std::pair<BufferId, std::vector<std::byte>>> given;
  for (const BufferId id : inputs()) {
    if (buffer_at(plan_, id).kind == BufferKind::inout) given.emplace_back(id, download(id));
  }
  for (int i = 0; i < runs; ++i) {
    enqueue(nullptr);
    device_.synchronize();
  }
  for (const auto& [id, bytes] : given) upload(id, bytes);
}

void PlanSession::enqueue(RankTrace* trace) {
  if (kept_) {
    kept_->run({}, nullptr, trace);
  } else {
    enqueue_steps(plan_, device_, trace);
  }
}

RunTimes run_on_host_buffers(Device& device, const Plan& plan, const HostBuffers& buffers,
                             const RunOptions& options) {
  PlanSession session(device, plan, buffers, options.kept);
  session.upload();
  const RunTimes times = session.run(options);
  session.download();
  return times;
}

}  // namespace cp
