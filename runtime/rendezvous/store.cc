#include "runtime/rendezvous/store.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "runtime/rendezvous/frame.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

Message::Answer answer_of(std::uint64_t id) {
  Message::Answer answer;
  answer.set_id(id);
  return answer;
}

Message::Answer error_of(std::uint64_t id, ErrorKind kind, const std::string& reason) {
  Message::Answer answer = answer_of(id);
  answer.set_kind(to_wire(kind));
  answer.set_reason(reason);
  return answer;
}

Message::Answer values_of(std::uint64_t id, const std::string& value) {
  Message::Answer answer = answer_of(id);
  answer.add_values(value);
  return answer;
}

std::string quoted(const std::string& name) { return str("'", printable(name), "'"); }

std::string waited(Store::Clock::time_point since, Store::Clock::time_point deadline) {
  return duration_text(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - since));
}

}  // namespace

void Store::handle(Rank rank, const Message::Request& request, Clock::time_point now, Reply reply) {
  constexpr std::int64_t kLongestMs = std::int64_t{1000} * 3600 * 24 * 365;
  const auto deadline =
      now + std::chrono::milliseconds(std::clamp<std::int64_t>(request.timeout_ms(), 0, kLongestMs));
  switch (request.body_case()) {
    case Message::Request::kSet:
      if (request.set().value().size() > kMaxValueBytes || request.set().key().size() > kMaxKeyBytes) {
        return reply(error_of(
            request.id(), ErrorKind::invalid_input,
            str("the value has ", request.set().value().size(), " bytes; use at most ", kMaxValueBytes)));
      }
      set(request.set().key(), request.set().value());
      return reply(answer_of(request.id()));
    case Message::Request::kAdd: {
      const auto known = values_.find(request.add().key());
      std::int64_t count = 0;
      if (known != values_.end()) {
        const std::string& text = known->second;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
        if (error != std::errc() || end != text.data() + text.size()) {
          return reply(
              error_of(request.id(), ErrorKind::invalid_input,
                       str("add to key ", quoted(request.add().key()), ": its value is not a number")));
        }
      }
      // Around at the ends, as a counter does.
      count = static_cast<std::int64_t>(static_cast<std::uint64_t>(count) +
                                        static_cast<std::uint64_t>(request.add().amount()));
      set(request.add().key(), str(count));
      Message::Answer answer = answer_of(request.id());
      answer.set_count(count);
      return reply(std::move(answer));
    }
    case Message::Request::kWait: {
      Waiting waiting{rank, request.id(), now, deadline, {}, request.wait().get(), std::move(reply)};
      waiting.keys.assign(request.wait().keys().begin(), request.wait().keys().end());
      if (waiting.keys.empty()) return waiting.reply(answer_of(waiting.id));
      if (!missing_key(waiting.keys).empty()) {
        waiting_.push_back(std::move(waiting));
        return;
      }
      return waiting.reply(waiting.get ? values_of(waiting.id, values_[waiting.keys.front()])
                                       : answer_of(waiting.id));
    }
    case Message::Request::kGather:
      return gather(rank, request, now, deadline, std::move(reply));
    case Message::Request::kFree:
      free(request.free());
      return reply(answer_of(request.id()));
    default:
      return reply(error_of(request.id(), ErrorKind::rendezvous, "the server does not know this request"));
  }
}

void Store::set(const std::string& key, std::string value) {
  values_.insert_or_assign(key, std::move(value));
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (!missing_key(waiting->keys).empty()) {
      ++waiting;
      continue;
    }
    waiting->reply(waiting->get ? values_of(waiting->id, values_[waiting->keys.front()])
                                : answer_of(waiting->id));
    waiting = waiting_.erase(waiting);
  }
}

std::string Store::missing_key(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys) {
    if (!values_.contains(key)) return quoted(key);
  }
  return "";
}

void Store::gather(Rank rank, const Message::Request& request, Clock::time_point now,
                   Clock::time_point deadline, Reply reply) {
  const std::string& name = request.gather().name();
  std::vector<Rank> ranks(request.gather().ranks().begin(), request.gather().ranks().end());
  if (ranks.empty()) ranks = roster_.all();
  const bool ascend = std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
  if (!ascend || ranks.front() < 0 || ranks.back() >= roster_.world_size() ||
      !std::ranges::binary_search(ranks, rank)) {
    return reply(error_of(request.id(), ErrorKind::invalid_input,
                          str("rank ", rank, " names ", ranks_text(ranks), " for ", quoted(name),
                              "; name ranks of the job in ascending order, and this rank among them")));
  }
  const auto [position, is_new] = gatherings_.try_emplace(name);
  Gathering& gathering = position->second;
  if (!is_new && gathering.ranks != ranks) {
    return reply(error_of(request.id(), ErrorKind::invalid_input,
                          str("rank ", rank, " names ", ranks_text(ranks), " for ", quoted(name),
                              ", but rank ", gathering.arrivals.begin()->first, " names ",
                              ranks_text(gathering.ranks), "; name the same ranks on all of them")));
  }
  gathering.ranks = std::move(ranks);
  gathering.barrier = request.gather().barrier();
  if (gathering.arrivals.contains(rank)) {
    return reply(error_of(request.id(), ErrorKind::invalid_input,
                          str("rank ", rank, " waits in ", quoted(name),
                              " already; only one thread of a rank may wait there")));
  }
  gathering.arrivals.emplace(rank,
                             Arrival{request.id(), now, deadline, request.gather().data(), std::move(reply)});
  if (gathering.arrivals.size() == gathering.ranks.size()) complete(name);
}

void Store::free(const Message::Free& request) {
  if (++done_[request.prefix()] < request.readers()) return;
  done_.erase(request.prefix());
  const auto begin = values_.lower_bound(request.prefix());
  values_.erase(begin, std::find_if(begin, values_.end(), [&](const auto& entry) {
                  return !entry.first.starts_with(request.prefix());
                }));
}

void Store::complete(const std::string& name) {
  const Gathering gathering = std::exchange(gatherings_[name], {});
  gatherings_.erase(name);
  std::size_t bytes = 0;
  Message::Answer answer;
  for (const auto& [rank, arrival] : gathering.arrivals) {
    bytes += arrival.data.size() + 8;
    if (!gathering.barrier) answer.add_values(arrival.data);
  }
  if (bytes > kMaxValueBytes && !gathering.barrier) {
    answer.clear_values();
    answer.set_kind(proto::INVALID_INPUT);
    answer.set_reason(str("all_gather ", quoted(name), ": the ranks give ", bytes,
                          " bytes, more than the limit of ", kMaxValueBytes,
                          "; gather digests, or use set and get"));
  }
  for (const auto& [rank, arrival] : gathering.arrivals) {
    answer.set_id(arrival.id);
    arrival.reply(answer);
  }
}

std::string Store::describe_absent() const {
  std::string text;
  for (const auto& [state, words] :
       {std::pair(RankState::absent, "never connected"), std::pair(RankState::left, "left"),
        std::pair(RankState::lost, "lost")}) {
    const std::vector<Rank> ranks = roster_.in_state(state);
    if (!ranks.empty()) text += str(text.empty() ? " (" : "; ", words, ": ", ranks_text(ranks));
  }
  return text.empty() ? text : text + ")";
}

std::string Store::describe_missing(const Gathering& gathering) const {
  std::vector<Rank> missing, waiting;
  for (const Rank rank : gathering.ranks)
    (gathering.arrivals.contains(rank) ? waiting : missing).push_back(rank);
  return str(ranks_text(missing), " of ", gathering.ranks.size(), missing.size() == 1 ? " has" : " have",
             " not arrived; ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait",
             describe_absent());
}

void Store::expire(Clock::time_point now) {
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (waiting->deadline > now) {
      ++waiting;
      continue;
    }
    waiting->reply(error_of(waiting->id, ErrorKind::timeout,
                            str("key ", missing_key(waiting->keys), " is not set after ",
                                waited(waiting->since, waiting->deadline), "; rank ", waiting->rank, " waits",
                                describe_absent())));
    waiting = waiting_.erase(waiting);
  }
  for (auto position = gatherings_.begin(); position != gatherings_.end();) {
    auto& [name, gathering] = *position;
    // Told of everybody who waits before the first of them gives up.
    const std::string missing = describe_missing(gathering);
    std::erase_if(gathering.arrivals, [&, &text = name, &kind = gathering.barrier](const auto& entry) {
      const Arrival& arrival = entry.second;
      if (arrival.deadline > now) return false;
      arrival.reply(error_of(arrival.id, ErrorKind::timeout,
                             str(kind ? "barrier " : "all_gather ", quoted(text), " after ",
                                 waited(arrival.since, arrival.deadline), ": ", missing)));
      return true;
    });
    position = gathering.arrivals.empty() ? gatherings_.erase(position) : std::next(position);
  }
}

void Store::forget(Rank rank) {
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.rank == rank; });
  for (auto& [name, gathering] : gatherings_) gathering.arrivals.erase(rank);
  std::erase_if(gatherings_, [](const auto& entry) { return entry.second.arrivals.empty(); });
}

void Store::forget_all() {
  waiting_.clear();
  gatherings_.clear();
}

}  // namespace cp::runtime
