#include "sim/fabric/fabric_device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <variant>

#include "shared/base/error.h"
#include "shared/plan/bindings.h"
#include "shared/plan/step_rules.h"

namespace cp::sim {

// ---- preparing ------------------------------------------------------------------------------------------------------

void FabricDevice::prepare(const Plan& plan, const Bindings& bindings) {
  require_idle("prepare");
  plan_ = nullptr;
  refuse_foreign_plan(plan, *this, "fabric");
  memberships_.clear();
  for (const Group& group : plan.groups) memberships_.push_back(membership_of(group));
  for (const StepRef& ref : steps_of(plan)) check_step(plan, *ref.step, ref.count);
  memory_.emplace(plan, bindings);
  world_.publish(rank_, program_of(plan));
  if (streams_.size() < plan.streams.size()) streams_.resize(plan.streams.size());
  plan_ = &plan;
}

FabricDevice::Membership FabricDevice::membership_of(const Group& group) {
  const auto known = known_groups_.find(group);
  if (known != known_groups_.end()) return known->second;
  Membership membership;
  const auto self = std::find(group.ranks.begin(), group.ranks.end(), rank_);
  if (self != group.ranks.end()) {
    membership = {.communicator = &world_.communicator(group),
                  .index = static_cast<std::int32_t>(self - group.ranks.begin())};
  }
  known_groups_.emplace(group, membership);
  return membership;
}

std::shared_ptr<const RankProgram> FabricDevice::program_of(const Plan& plan) const {
  auto program = std::make_shared<RankProgram>();
  const auto add = [&](const Step& step, RankProgram::Part& part) {
    const auto* collective = std::get_if<Collective>(&step.work);
    if (collective == nullptr) return;
    const Communicator* communicator =
        memberships_[static_cast<std::size_t>(group_of(*collective))].communicator;
    part.entries.push_back({communicator, arguments_of(plan, *collective, communicator->size())});
  };
  for (const Segment& segment : plan.segments) {
    if (const Step* step = std::get_if<Step>(&segment)) {
      if (program->parts.empty() || program->parts.back().count != 1) program->parts.emplace_back();
      add(*step, program->parts.back());
    } else {
      const Repeat& repeat = std::get<Repeat>(segment);
      RankProgram::Part& part = program->parts.emplace_back();
      part.count = repeat.count;
      for (const Step& body_step : repeat.steps) add(body_step, part);
    }
  }
  return program;
}

void FabricDevice::check_step(const Plan& plan, const Step& step, std::int64_t repeat_count) {
  validate_step(plan, step, repeat_count);
  if (!is_collective(step)) return;
  Membership& membership = memberships_[static_cast<std::size_t>(group_of(std::get<Collective>(step.work)))];
  if (membership.stream >= 0 && membership.stream != step.stream) {
    throw InvalidInput(str("the collectives of group ", to_string(membership.communicator->group()),
                           " are issued on streams ", membership.stream, " and ", step.stream,
                           "; use one stream for each group, or a second group of the same ranks"));
  }
  membership.stream = step.stream;
}

void FabricDevice::require_prepared(const char* what) const {
  if (plan_ == nullptr)
    throw InvalidInput(str(what, " on rank ", rank_, " without a prepared plan; call prepare first"));
}

void FabricDevice::require_idle(const char* what) const {
  if (!idle()) {
    throw InvalidInput(
        str(what, " on rank ", rank_, " while ", queued_, " steps are enqueued; call synchronize first"));
  }
}

void FabricDevice::abandon() {
  plan_ = nullptr;
  streams_.clear();
  queued_ = 0;
}

// ---- enqueueing -----------------------------------------------------------------------------------------------------

FabricDevice::Stream& FabricDevice::stream_at(StreamId stream) {
  if (stream < 0 || static_cast<std::size_t>(stream) >= streams_.size()) {
    throw InvalidInput(
        str("stream ", stream, " on rank ", rank_, "; the prepared plans have ", streams_.size()));
  }
  return streams_[static_cast<std::size_t>(stream)];
}

void FabricDevice::enqueue(Stream& stream, const Item& item) {
  stream.items.push_back(item);
  ++stream.launched;
  ++queued_;
}

void FabricDevice::launch(const StepRef& step, std::int64_t iteration) {
  require_prepared("launch");
  enqueue(stream_at(step.step->stream), {.step = step.step,
                                         .iteration = iteration,
                                         .collective = is_collective(*step.step) ? collectives_++ : -1});
}

EventId FabricDevice::record(StreamId stream) { return make_event(stream, stream_at(stream).launched); }

void FabricDevice::wait(StreamId stream, EventId event) {
  Stream& waiting = stream_at(stream);
  if (event < 0 || launched_of(event) > stream_at(stream_of(event)).launched) {
    throw InvalidInput(str("event ", event, " was never recorded on rank ", rank_));
  }
  if (stream_of(event) != stream && !has_finished(event)) enqueue(waiting, {.event = event});
}

bool FabricDevice::has_finished(EventId event) const {
  return stream_at(stream_of(event)).finished >= launched_of(event);
}

// ---- data -----------------------------------------------------------------------------------------------------------

std::span<std::byte> FabricDevice::callers_buffer(const char* what, BufferId buffer,
                                                  std::size_t size_bytes) const {
  require_prepared(what);
  require_idle(what);
  check_host_copy(*plan_, what, buffer, size_bytes);
  return memory_->bytes(buffer);
}

void FabricDevice::upload(BufferId buffer, std::span<const std::byte> host) {
  const std::span<std::byte> bytes = callers_buffer("upload", buffer, host.size());
  if (!host.empty()) std::memcpy(bytes.data(), host.data(), host.size());
}

void FabricDevice::download(BufferId buffer, std::span<std::byte> host) {
  const std::span<std::byte> bytes = callers_buffer("download", buffer, host.size());
  if (!host.empty()) std::memcpy(host.data(), bytes.data(), host.size());
}

}  // namespace cp::sim
