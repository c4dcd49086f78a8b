#include <algorithm>
#include <map>
#include <optional>

#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "shared/plan/check_internal.h"

namespace cp::checker {
namespace {

// What all members of a collective agree on. Of an Exchange: that it is one; its transfers are compared pair
// by pair.
struct Signature {
  std::size_t operation = 0;  // index in the variant
  std::optional<DType> dtype;
  std::optional<ReduceOp> reduction;
  std::int32_t root = -1;
  std::int64_t numel = 0;  // of what one member contributes to, or gets from, another
  std::int64_t count = 1;  // iterations
  std::int32_t repeat = -1;
  bool operator==(const Signature&) const = default;
};

Signature signature(const RankPlan& rank, const CollectiveRef& ref) {
  Signature result{
      .operation = ref.work->index(), .dtype = {}, .reduction = {}, .count = ref.count, .repeat = ref.repeat};
  const auto carries = [&](const View& view) {
    result.dtype = rank.buffer(view).dtype;
    result.numel = view.numel();
  };
  std::visit(Overloaded{[&](const AllGather& op) { carries(op.in); },
                        [&](const ReduceScatter& op) { carries(op.out), result.reduction = op.op; },
                        [&](const AllReduce& op) { carries(op.out), result.reduction = op.op; },
                        [&](const AllToAll& op) { carries(op.out); },
                        [&](const Broadcast& op) { carries(op.out), result.root = op.root; },
                        [&](const Exchange&) {}},
             *ref.work);
  return result;
}

std::string signature_text(const RankPlan& rank, const CollectiveRef& ref) {
  const Signature signed_as = signature(rank, ref);
  std::string words{operation_name(*ref.work)};
  if (signed_as.reduction) words += str(" ", name(*signed_as.reduction));
  if (signed_as.root >= 0) words += str(" from index ", signed_as.root);
  if (signed_as.dtype) words += str(" of ", signed_as.numel, " ", name(*signed_as.dtype));
  if (ref.count > 1) words += str(" in Repeat ", ref.repeat, " of ", ref.count, " iterations");
  return words;
}

class Matching {
 public:
  explicit Matching(const World& world) : world_(world) {}

  void check() {
    for (const Communicator& communicator : world_.communicators) {
      communicator_ = &communicator;
      std::size_t least = calls(0);
      for (std::size_t i = 1; i < size(); ++i) least = std::min(least, calls(i));
      for (std::size_t k = 0; k < least; ++k) check_call(k);
      for (std::size_t i = 0; i < size(); ++i) {
        if (calls(i) != least) fail_length(least);
      }
    }
  }

 private:
  // ---- members of the communicator at hand, by index ----

  std::size_t size() const { return communicator_->members.size(); }
  const RankPlan& member(std::size_t index) const {
    return world_.ranks[idx(communicator_->members[index].plan)];
  }
  Rank rank(std::size_t index) const { return member(index).plan->self; }
  std::size_t calls(std::size_t index) const {
    const std::size_t group = idx(communicator_->members[index].group);
    return idx(member(index).group_begin[group + 1] - member(index).group_begin[group]);
  }
  const CollectiveRef& call(std::size_t index, std::size_t k) const {
    const RankPlan& plan = member(index);
    const std::size_t begin = idx(plan.group_begin[idx(communicator_->members[index].group)]);
    return plan.collectives[idx(plan.by_group[begin + k])];
  }
  std::string call_text(std::size_t k) const { return collective_text(member(0), call(0, k)); }
  std::string step_of(std::size_t index, std::size_t k) const {
    return str("rank ", rank(index), "'s ", step_text(*member(index).plan, call(index, k).step));
  }

  // ---- one collective ----

  void check_call(std::size_t k) {
    const Signature first = signature(member(0), call(0, k));
    for (std::size_t i = 1; i < size(); ++i) {
      if (signature(member(i), call(i, k)) != first) fail_signatures(k);
    }
    if (std::holds_alternative<Exchange>(*call(0, k).work)) check_exchange(k);
  }

  // The fewest first: who is wrong is most likely among them.
  [[noreturn]] void fail_signatures(std::size_t k) const {
    std::map<std::string, std::vector<std::size_t>> who;
    for (std::size_t i = 0; i < size(); ++i) who[signature_text(member(i), call(i, k))].push_back(i);
    std::vector<std::pair<std::string, std::vector<std::size_t>>> sides(who.begin(), who.end());
    std::stable_sort(sides.begin(), sides.end(),
                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::vector<std::string> parts;
    for (const auto& [words, indices] : sides) {
      std::vector<Rank> ranks;
      for (const std::size_t i : indices) ranks.push_back(rank(i));
      parts.push_back(str(ranks.size() > 1 ? "ranks " : "rank ", join(ranks), ": ", words, " (",
                          step_text(*member(indices[0]).plan, call(indices[0], k).step), ")"));
    }
    throw CollectiveMismatch(str("collective #", call(0, k).sequence, " on ", text(*communicator_->group),
                                 " differs: ", join(parts, "; ")),
                             about(k));
  }

  [[noreturn]] void fail_length(std::size_t least) const {
    std::size_t less = 0, more = 0;
    while (calls(less) != least) ++less;
    while (calls(more) == least) ++more;
    throw CollectiveMismatch(
        str("rank ", rank(more), " issues ", calls(more), " collectives on ", text(*communicator_->group),
            ", rank ", rank(less), " only ", least, "; ", step_of(more, least), " (",
            collective_text(member(more), call(more, least)), ") has no counterpart"),
        about_step(more, least));
  }

  // ---- exchanges ----

  struct Message {
    std::int32_t from = 0, to = 0;
    std::int64_t numel = 0;
    DType dtype = DType::f32;
    bool operator==(const Message&) const = default;
  };
  static bool by_pair(const Message& a, const Message& b) {
    return a.from != b.from ? a.from < b.from : a.to < b.to;
  }

  // Both sides of every transfer, each by sender and receiver and then in the order of its own list.
  void collect_messages(std::size_t k) {
    sent_.clear(), received_.clear();
    for (std::size_t i = 0; i < size(); ++i) {
      const Exchange& exchange = std::get<Exchange>(*call(i, k).work);
      const auto self = static_cast<std::int32_t>(i);
      for (const Transfer& send : exchange.sends) {
        sent_.push_back({self, send.peer, send.view.numel(), member(i).buffer(send.view).dtype});
      }
      for (const Transfer& recv : exchange.recvs) {
        received_.push_back({recv.peer, self, recv.view.numel(), member(i).buffer(recv.view).dtype});
      }
    }
    for (std::vector<Message>* side : {&sent_, &received_}) {
      if (!std::is_sorted(side->begin(), side->end(), by_pair))
        std::stable_sort(side->begin(), side->end(), by_pair);
    }
  }

  void check_exchange(std::size_t k) {
    collect_messages(k);
    if (sent_ != received_) fail_messages(k);
    std::vector<Count> counts;
    counts.reserve(sent_.size());
    for (const Message& message : sent_) counts.push_back({message.from, message.to, message.numel});
    const Digest digest = counts_digest(std::move(counts));
    for (std::size_t i = 0; i < size(); ++i) {
      const Digest& declared = std::get<Exchange>(*call(i, k).work).counts;
      if (declared == digest) continue;
      throw CollectiveMismatch(
          str(step_of(i, k), " (", call_text(k), ") declares the counts digest ", to_string(declared),
              ", but the matrix of what is sent has ", to_string(digest),
              "; take counts_digest of the whole matrix on every member"),
          about_step(i, k));
    }
  }

  [[noreturn]] void fail_messages(std::size_t k) const {
    std::size_t i = 0;
    while (i < sent_.size() && i < received_.size() && sent_[i] == received_[i]) ++i;
    const Message* sent = i < sent_.size() ? &sent_[i] : nullptr;
    const Message* received = i < received_.size() ? &received_[i] : nullptr;
    if (sent != nullptr && received != nullptr) {  // of two pairs, the other side lacks the lesser
      if (by_pair(*sent, *received)) {
        received = nullptr;
      } else if (by_pair(*received, *sent)) {
        sent = nullptr;
      }
    }
    const Message& at = sent != nullptr ? *sent : *received;
    const std::vector<Message>& side = sent != nullptr ? sent_ : received_;
    std::size_t number = 0;
    while (number < i && !by_pair(side[i - number - 1], at)) ++number;
    const auto words = [](const Message* message) {
      return message == nullptr ? std::string("none") : str(message->numel, " ", name(message->dtype));
    };
    ErrorFacts facts = about(k);
    facts.sender = rank(idx(at.from)), facts.receiver = rank(idx(at.to));
    throw CollectiveMismatch(str(call_text(k), ": transfer ", number, " from rank ", rank(idx(at.from)),
                                 " to rank ", rank(idx(at.to)), ": ", step_of(idx(at.from), k), " sends ",
                                 words(sent), ", ", step_of(idx(at.to), k), " expects ", words(received)),
                             facts);
  }

  // ---- facts of errors ----

  // Of the collective, as its first member has it.
  ErrorFacts about(std::size_t k) const {
    return {.group = canonical_name(*communicator_->group), .sequence = call(0, k).sequence};
  }
  // Of one member's step.
  ErrorFacts about_step(std::size_t i, std::size_t k) const {
    const CollectiveRef& ref = call(i, k);
    return {.operation = std::string(operation_name(*ref.work)),
            .group = canonical_name(*communicator_->group),
            .sequence = ref.sequence,
            .rank = rank(i),
            .step = ref.step};
  }

  const World& world_;
  const Communicator* communicator_ = nullptr;
  std::vector<Message> sent_, received_;
};

}  // namespace

void check_matching(const World& world) { Matching(world).check(); }

}  // namespace cp::checker
