#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/proof/progress/progress_model.h"

namespace cp::sim::progress {

State::State(const Model& model)
    : model_(&model),
      at_(model.queues.size(), 0),
      phase_(model.queues.size(), Phase::waits),
      launches_begun_(model.plans.size(), 0),
      launches_finished_(model.plans.size(), 0),
      sent_(model.channels.size(), 0),
      received_(model.channels.size(), 0) {
  for (const Communicator& communicator : model.communicators) {
    std::size_t most = 0;
    for (const auto& meetings : communicator.meetings) most = std::max(most, meetings.size());
    arrived_.emplace_back(most, 0);
  }
  for (const auto& queue : model.queues) unfinished_ += queue.empty() ? 0 : 1;
}

OpId State::head(std::int32_t queue) const {
  const std::vector<OpId>& ops = model_->queues[idx(queue)];
  const std::size_t at = idx(at_[idx(queue)]);
  return at < ops.size() ? ops[at] : kNone;
}

bool State::finished(OpId id) const {
  const Op& op = model_->op(id);
  return at_[idx(op.queue)] > op.position;
}
bool State::begun(OpId id) const {
  const Op& op = model_->op(id);
  return finished(id) || (at_[idx(op.queue)] == op.position && phase(op.queue) != Phase::waits);
}

bool State::after_is_done(const Op& op) const {
  return std::all_of(op.after.begin(), op.after.end(), [&](OpId earlier) { return finished(earlier); });
}

bool State::may_launch(const Op& op, bool choices) const {
  if (op.kind == Kind::kernel) return true;
  const std::size_t rank = idx(op.rank);
  switch (model_->rules.launch) {
    case Launch::any:
      return true;
    case Launch::begin_in_order:
      return launches_begun_[rank] == op.launch;
    case Launch::one_in_order:
      return launches_finished_[rank] == op.launch;
    case Launch::one_at_a_time:
      return choices && launches_begun_[rank] == launches_finished_[rank];
  }
  return false;
}

bool State::has_met(const Op& op) const {
  const Communicator& communicator = model_->communicators[idx(op.communicator)];
  return arrived_[idx(op.communicator)][idx(op.meeting)] ==
         static_cast<std::int32_t>(communicator.group.ranks.size());
}

// Messages of a channel open in order at both ends, so that the last one tells of all.
bool State::is_awaited(const Messages& messages) const {
  const Channel& channel = model_->channels[idx(messages.channel)];
  const std::vector<OpId>& others = messages.sends ? channel.receives.ops : channel.sends.ops;
  return (messages.sends && has_room(messages)) ||
         (messages.last < static_cast<std::int64_t>(others.size()) && begun(others[idx(messages.last)]));
}

bool State::has_room(const Messages& messages) const {
  const Channel& channel = model_->channels[idx(messages.channel)];
  const auto bytes = [](const Channel::End& end, std::int64_t count) {
    return count == 0 ? 0 : end.up_to[idx(count - 1)];
  };
  if (!messages.sends) {
    return bytes(channel.receives, messages.last + 1) <= bytes(channel.sends, sent_[idx(messages.channel)]);
  }
  if (!model_->rules.buffer_bytes.has_value()) return true;
  return bytes(channel.sends, messages.last + 1) <=
         bytes(channel.receives, received_[idx(messages.channel)]) + *model_->rules.buffer_bytes;
}

bool State::can_move(std::int32_t queue, bool choices) const {
  const OpId id = head(queue);
  if (id == kNone) return false;
  const Op& op = model_->op(id);
  switch (phase(queue)) {
    case Phase::waits:
      return after_is_done(op) && may_launch(op, choices);
    case Phase::begun:
      return op.kind == Kind::collective
                 ? has_met(op)
                 : std::all_of(op.messages.begin(), op.messages.end(),
                               [&](const Messages& messages) { return is_awaited(messages); });
    case Phase::open:
      return std::all_of(op.messages.begin(), op.messages.end(),
                         [&](const Messages& messages) { return has_room(messages); });
  }
  return false;
}

void State::move(std::int32_t queue, std::vector<std::int32_t>* woken) {
  const Op& op = model_->op(head(queue));
  Phase& phase = phase_[idx(queue)];
  const auto wake = [&](std::int32_t plan) {
    if (woken != nullptr && plan >= 0) woken->push_back(plan);
  };
  const auto wake_peers = [&] {
    for (const Messages& messages : op.messages) {
      const Channel& channel = model_->channels[idx(messages.channel)];
      wake(
          model_->communicators[idx(op.communicator)].plans[idx(messages.sends ? channel.to : channel.from)]);
    }
  };
  const auto open = [&] {
    phase = Phase::open;
    for (const Messages& messages : op.messages) {
      (messages.sends ? sent_ : received_)[idx(messages.channel)] = messages.last + 1;
    }
    wake_peers();
  };
  const auto finish = [&] {
    phase = Phase::waits;
    if (++at_[idx(queue)] == static_cast<std::int32_t>(model_->queues[idx(queue)].size())) --unfinished_;
    if (op.kind != Kind::kernel) ++launches_finished_[idx(op.rank)];
    wake(op.rank);
  };
  if (phase == Phase::open || (phase == Phase::begun && op.kind == Kind::collective)) return finish();
  if (phase == Phase::begun) return open();
  if (op.kind == Kind::kernel) return finish();
  ++launches_begun_[idx(op.rank)];
  phase = Phase::begun;
  wake(op.rank);
  if (op.kind == Kind::exchange) return model_->rules.meeting == Meeting::transfers ? open() : wake_peers();
  ++arrived_[idx(op.communicator)][idx(op.meeting)];
  if (has_met(op)) {
    for (const std::int32_t plan : model_->communicators[idx(op.communicator)].plans) wake(plan);
  }
}

void State::settle(std::int32_t from) {
  std::vector<std::int32_t> woken;
  if (from >= 0) {
    woken.push_back(from);
  } else {
    for (std::size_t plan = model_->plans.size(); plan-- > 0;)
      woken.push_back(static_cast<std::int32_t>(plan));
  }
  while (!woken.empty()) {
    const std::int32_t rank = woken.back();
    woken.pop_back();
    for (const std::int32_t queue : model_->queues_of[idx(rank)]) {
      while (can_move(queue, false)) move(queue, &woken);
    }
  }
}

std::string State::key() const {
  std::string key;
  key.reserve(at_.size() * 5);
  for (std::size_t queue = 0; queue < at_.size(); ++queue) {
    for (int shift = 0; shift < 32; shift += 8) key += static_cast<char>(at_[queue] >> shift & 0xff);
    key += static_cast<char>(phase_[queue]);
  }
  return key;
}

}  // namespace cp::sim::progress
