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
  refuse_foreign_plan(plan, *this, "fabric");
  used_ = nullptr;
  prepared_.first().reset();
  prepared_.first() = make_ready(plan, 0, HostMemory(plan, bindings));
  use(0, {});
}

PreparedId FabricDevice::keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
  refuse_foreign_plan(plan, *this, "fabric");
  std::unique_ptr<Prepared> made = make_ready(plan, lane, HostMemory(plan, bindings, arenas_.of(lane)));
  share(lane, made->memory.memory().arena());
  lanes_.keep(plan, lane);
  return prepared_.add(std::move(made));
}

void FabricDevice::share(LaneId lane, const std::shared_ptr<HostArena>& arena) {
  if (!arenas_.offer(lane, arena)) return;
  if (const EventId last = lanes_.last_end(lane); last >= 0) await(last);
  prepared_.for_each_in(lane, [&](Prepared& kept) { kept.memory.move_to(arena); });
}

std::unique_ptr<FabricDevice::Prepared> FabricDevice::make_ready(const Plan& plan, LaneId lane,
                                                                 HostMemory memory) {
  std::vector<StreamId> streams = lanes_.streams_for(plan, lane);
  auto prepared = std::make_unique<Prepared>(
      Prepared{&plan, lane, RebindableMemory(plan, std::move(memory)), {}, {}, std::move(streams)});
  for (const Group& group : plan.groups) prepared->memberships.push_back(membership_of(group));
  for (const StepRef& ref : steps_of(plan)) check_step(*prepared, *ref.step, ref.count);
  prepared->program = program_of(*prepared);
  if (streams_.size() < lanes_.streams()) streams_.resize(lanes_.streams());
  return prepared;
}

void FabricDevice::use(PreparedId id, const Bindings& changed) {
  Prepared& next = prepared_.at(id);
  next.memory.bind(changed);
  if (used_ != &next) world_.publish(rank_, next.program);
  used_ = &next;
}

void FabricDevice::release(PreparedId id) {
  const Prepared* const released = prepared_.find(id);
  if (released == nullptr) return;  // forgotten behind an error
  lanes_.release(*released->plan, released->lane);
  if (used_ == released) used_ = nullptr;
  prepared_.remove(id);
}

void FabricDevice::begin_run(CallerStream caller) {
  refuse_callers_stream(caller, *this, "fabric");
  begin_run_after({});
}

void FabricDevice::begin_run_after(std::span<const EventId> events) {
  require_prepared("begin_run");
  if (const EventId before = lanes_.last_end(used_->lane); before >= 0) wait(0, before);
  for (const EventId event : events) wait(0, event);
}

void FabricDevice::end_run(CallerStream, EventId end) { lanes_.last_end(used_->lane) = end; }

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

std::shared_ptr<const RankProgram> FabricDevice::program_of(const Prepared& prepared) {
  const Plan& plan = *prepared.plan;
  auto program = std::make_shared<RankProgram>();
  const auto add = [&](const Step& step, RankProgram::Part& part) {
    const auto* collective = std::get_if<Collective>(&step.work);
    if (collective == nullptr) return;
    const Communicator* communicator = prepared.membership(*collective).communicator;
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

void FabricDevice::check_step(Prepared& prepared, const Step& step, std::int64_t repeat_count) {
  validate_step(*prepared.plan, step, repeat_count);
  if (!is_collective(step)) return;
  Membership& membership =
      prepared.memberships[static_cast<std::size_t>(group_of(std::get<Collective>(step.work)))];
  if (membership.stream >= 0 && membership.stream != step.stream) {
    throw InvalidInput(str("the collectives of group ", to_string(membership.communicator->group()),
                           " are issued on streams ", membership.stream, " and ", step.stream,
                           "; use one stream for each group, or a second group of the same ranks"));
  }
  membership.stream = step.stream;
}

void FabricDevice::require_prepared(const char* what) const {
  if (used_ == nullptr)
    throw InvalidInput(str(what, " on rank ", rank_, " without a prepared plan; call prepare first"));
}

void FabricDevice::require_idle(const char* what) const {
  if (!idle()) {
    throw InvalidInput(
        str(what, " on rank ", rank_, " while ", queued_, " steps are enqueued; call synchronize first"));
  }
}

void FabricDevice::abandon() {
  used_ = nullptr;
  prepared_.clear();
  lanes_.clear();
  streams_.clear();
  queued_ = 0;
}

// ---- enqueueing -----------------------------------------------------------------------------------------------------

StreamId FabricDevice::device_stream(StreamId stream) const {
  const std::size_t count = used_ == nullptr ? 0 : used_->streams.size();
  if (stream < 0 || static_cast<std::size_t>(stream) >= count)
    throw InvalidInput(str("stream ", stream, " on rank ", rank_, "; the prepared plan has ", count));
  return used_->streams[static_cast<std::size_t>(stream)];
}

void FabricDevice::enqueue(Stream& stream, const Item& item) {
  stream.items.push_back(item);
  ++stream.launched;
  ++queued_;
}

void FabricDevice::launch(const StepRef& step, std::int64_t iteration) {
  require_prepared("launch");
  RebindableMemory::Version& version = used_->memory.current();
  enqueue(stream_at(device_stream(step.step->stream)),
          {.step = step.step,
           .iteration = iteration,
           .collective = is_collective(*step.step) ? collectives_++ : -1,
           .prepared = used_,
           .version = &version});
  ++version.under_way;
}

EventId FabricDevice::record(StreamId stream) {
  const StreamId on_device = device_stream(stream);
  return make_event(on_device, stream_at(on_device).launched);
}

void FabricDevice::wait(StreamId stream, EventId event) {
  const StreamId on_device = device_stream(stream);
  require_recorded(event);
  if (stream_of(event) != on_device && !has_finished(event)) enqueue(stream_at(on_device), {.event = event});
}

void FabricDevice::require_recorded(EventId event) const {
  if (event >= 0 && static_cast<std::size_t>(stream_of(event)) < streams_.size() &&
      launched_of(event) <= stream_at(stream_of(event)).launched)
    return;
  throw InvalidInput(str("event ", event, " was never recorded on rank ", rank_));
}

void FabricDevice::await(EventId event) {
  if (world_.scheduler().cancelled()) world_.throw_cancelled(rank_);
  require_recorded(event);
  if (!has_finished(event)) synchronize();
}

bool FabricDevice::has_finished(EventId event) const {
  const auto stream = static_cast<std::size_t>(stream_of(event));
  return stream < streams_.size() && streams_[stream].finished >= launched_of(event);
}

// ---- data -----------------------------------------------------------------------------------------------------------

std::span<std::byte> FabricDevice::callers_buffer(const char* what, BufferId buffer,
                                                  std::size_t size_bytes) const {
  require_prepared(what);
  require_idle(what);
  check_host_copy(*used_->plan, what, buffer, size_bytes);
  return used_->memory.memory().bytes(buffer);
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
