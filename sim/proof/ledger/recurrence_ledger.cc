#include "sim/proof/ledger/recurrence_ledger.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan_walk.h"
#include "shared/plan/recurrence_rules.h"
#include "sim/proof/ledger/sequence_pieces.h"

namespace cp::sim {
namespace {

// The row before row 0 that stands for all whose state was cached.
constexpr std::int64_t kCachedRow = -1;

// What lies in a place for a state: of the rows [begin, end) of one document.
//   state       what they wrote, as it is behind the last of them
//   gradient    what their outputs make of the gradient before the first of them
//   transition  what they do to whatever comes in
struct StateTag {
  enum class Kind : std::uint8_t { state, gradient, transition };
  Kind kind = Kind::state;
  std::int64_t begin = 0, end = 0;
  bool operator==(const StateTag&) const = default;
};
std::string text(const std::optional<StateTag>& tag) {
  if (!tag) return "nothing";
  const char* const kinds[] = {"the state of", "the gradient of", "the transition of"};
  return str(kinds[static_cast<int>(tag->kind)], " rows [", tag->begin, ", ", tag->end, ")");
}

class StateKeeper {
 public:
  StateKeeper(const RecurrenceRequest& request, RecurrencePass pass, std::span<const Plan> plans)
      : request_(request),
        problem_(request.problem),
        pass_(pass),
        plans_(plans),
        pieces_(request),
        trades_(request.strategy.scan == StateScan::heads && request.ranks.size() > 1) {
    for (const Plan& plan : plans) {
      const auto found = std::find(request.ranks.begin(), request.ranks.end(), plan.self);
      if (found == request.ranks.end())
        throw InvalidInput(
            str("a plan of rank ", plan.self, ", which is none of the cp ranks ", join(request.ranks, ", ")));
      indices_.push_back(static_cast<int>(found - request.ranks.begin()));
      walks_.emplace_back(plan);
    }
    computed_.assign(plans.size(), std::vector<int>(idx(problem_.seq_len)));
    ledger_.received.resize(plans.size());
  }

  RecurrenceLedger keep() {
    for (std::size_t plan = 0; plan < plans_.size(); ++plan)
      for_each_saved(plan, BufferKind::input, [&](const Place& place, const StateTag& tag) {
        tags_[{plan, place.first, place.second}] = tag;
      });
    put_cached_states();
    run();
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      audit_cached_state(plan);
      for_each_saved(plan, BufferKind::output, [&](const Place& place, const StateTag& tag) {
        const std::optional<StateTag> found = tag_at(plan, place);
        if (found != tag)
          find_at(plan, plans_[plan].buffers[idx(place.first)].name, " keeps ", text(found), " where ",
                  text(tag), " belongs");
      });
      audit_rows(plan);
    }
    audit_bytes();
    return std::move(ledger_);
  }

 private:
  using Place = std::pair<BufferId, std::int64_t>;  // an offset

  template <class... Words>
  void find_at(std::size_t plan, const Words&... words) {
    ledger_.states.add([&] { return str("rank ", plans_[plan].self, ": ", words...); });
  }
  template <class... Words>
  void find(std::size_t plan, const Words&... words) {
    const PlanWalk& walk = walks_[plan];
    find_at(plan, "step ", walk.id(), " ", operation_name(walk.step().work),
            walk.step().label.empty() ? "" : str(" \"", walk.step().label, "\""), " ", words...);
  }

  std::optional<StateTag> tag_at(std::size_t plan, const Place& place) const {
    const auto found = tags_.find({plan, place.first, place.second});
    if (found == tags_.end()) return std::nullopt;
    return found->second;
  }
  std::optional<StateTag> tag_of(std::size_t plan, const View& view) const {
    return tag_at(plan, {view.buffer, view.offset});
  }
  void put(std::size_t plan, const View& view, const StateTag& tag) {
    tags_[{plan, view.buffer, view.offset}] = tag;
  }

  // ---- saved states ----

  // What the forward pass keeps: of each piece that a state comes in to, that state; of each that it goes
  // through, its transition.
  template <class Visit>
  void for_each_saved(std::size_t plan, BufferKind kind, const Visit& visit) const {
    if (trades_) return;
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < pieces_.all().size(); ++i) {
      if (pieces_.all()[i].index == indices_[plan]) own.push_back(i);
    }
    const auto local_row = [&](std::size_t piece) {
      const std::vector<std::int64_t>& rows = pieces_.rows_of(indices_[plan]);
      return std::find(rows.begin(), rows.end(), pieces_.all()[piece].begin) - rows.begin();
    };
    std::sort(own.begin(), own.end(),
              [&](std::size_t a, std::size_t b) { return local_row(a) < local_row(b); });
    for (std::size_t b = 0; b < plans_[plan].buffers.size(); ++b) {
      const Buffer& buffer = plans_[plan].buffers[b];
      const bool states = buffer.name == "saved_states", transitions = buffer.name == "saved_transitions";
      if (buffer.kind != kind || (!states && !transitions)) continue;
      std::int64_t at = 0;
      for (const std::size_t i : own) {
        const SequencePiece& piece = pieces_.all()[i];
        const std::int64_t document = pieces_.document_begin(piece.begin);
        if (states && document < piece.begin) {
          visit({static_cast<BufferId>(b), at},
                {StateTag::Kind::state, state_begin(piece.begin), piece.begin});
          at += problem_.state_numel();
        }
        if (transitions && pieces_.is_inside(i)) {
          visit({static_cast<BufferId>(b), at}, {StateTag::Kind::transition, piece.begin, piece.end});
          at += problem_.transition_numel();
        }
      }
    }
  }

  // ---- the cached state ----

  // The first row whose document's state a row sees.
  std::int64_t state_begin(std::int64_t row) const {
    return problem_.cached_state ? kCachedRow : pieces_.document_begin(row);
  }
  std::optional<Place> cached_state_of(std::size_t plan) const {
    const std::vector<Buffer>& buffers = plans_[plan].buffers;
    const auto found = std::find_if(buffers.begin(), buffers.end(), [](const Buffer& buffer) {
      return buffer.kind == BufferKind::inout && buffer.name == "state";
    });
    if (found == buffers.end()) return std::nullopt;
    return Place{static_cast<BufferId>(found - buffers.begin()), 0};
  }
  void put_cached_states() {
    for (std::size_t plan = 0; problem_.cached_state && plan < plans_.size(); ++plan) {
      if (const auto place = cached_state_of(plan))
        tags_[{plan, place->first, place->second}] = {StateTag::Kind::state, kCachedRow, 0};
    }
  }
  // A rank that computes all rows of some heads has the state of these; else the rank of the first row has
  // that of all heads.
  void audit_cached_state(std::size_t plan) {
    const bool holds = problem_.cached_state && (trades_ || indices_[plan] == pieces_.all().front().index);
    const auto place = cached_state_of(plan);
    if (place.has_value() != holds)
      return find_at(plan, holds ? "lacks the cached state" : "has a cached state that it does not hold");
    if (!holds) return;
    const std::int64_t wanted_numel =
        trades_ ? problem_.state_numel() / static_cast<std::int64_t>(plans_.size()) : problem_.state_numel();
    const std::int64_t numel = plans_[plan].buffers[idx(place->first)].numel;
    if (numel != wanted_numel) find_at(plan, "caches ", numel, " elements of states, not ", wanted_numel);
    const StateTag wanted{StateTag::Kind::state, kCachedRow, problem_.seq_len};
    const std::optional<StateTag> found = tag_at(plan, *place);
    if (found != wanted) find_at(plan, "caches ", text(found), " where ", text(wanted), " belongs");
  }

  // ---- the run ----

  void run() {
    std::map<std::pair<std::string, std::vector<Rank>>, std::vector<std::size_t>> waiting;
    std::vector<std::size_t> ready;
    for (std::size_t plan = plans_.size(); plan-- > 0;) ready.push_back(plan);
    while (!ready.empty()) {
      const std::size_t plan = ready.back();
      ready.pop_back();
      for (; !walks_[plan].done(); walks_[plan].next()) {
        const Work& work = walks_[plan].step().work;
        if (const auto* collective = std::get_if<Collective>(&work)) {
          const Group& group = plans_[plan].groups[idx(group_of(*collective))];
          std::vector<std::size_t>& there = waiting[{group.name, group.ranks}];
          there.push_back(plan);
          if (there.size() == group.ranks.size()) {
            meet(group, there);
            for (const std::size_t member : there) walks_[member].next(), ready.push_back(member);
            there.clear();
          }
          break;
        }
        std::visit([&](const auto& op) { run_kernel(plan, op); }, std::get<Kernel>(work));
      }
    }
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      if (!walks_[plan].done()) find(plan, "waits for members that never come");
    }
  }

  // States move by exchanges. What else moves are the rows of heads, which are redistributions.
  void meet(const Group& group, const std::vector<std::size_t>& plans) {
    std::map<std::pair<Rank, Rank>, std::vector<std::optional<StateTag>>> sent;
    for (const std::size_t plan : plans) {
      const auto& collective = std::get<Collective>(walks_[plan].step().work);
      if (trades_) {
        for (const std::int64_t bytes : volume(collective, plans_[plan]).received)
          ledger_.received[plan].rows += bytes;
        continue;
      }
      const auto* exchange = std::get_if<Exchange>(&collective);
      if (exchange == nullptr) {
        find(plan, "moves states, which an exchange does");
        return;
      }
      for (const Transfer& send : exchange->sends)
        sent[{plans_[plan].self, group.ranks[idx(send.peer)]}].push_back(tag_of(plan, send.view));
    }
    for (const std::size_t plan : plans) {
      const auto* exchange = std::get_if<Exchange>(&std::get<Collective>(walks_[plan].step().work));
      if (trades_ || exchange == nullptr) continue;
      std::map<Rank, std::size_t> nth;
      for (const Transfer& recv : exchange->recvs) {
        const Rank from = group.ranks[idx(recv.peer)];
        const auto& tags = sent[{from, plans_[plan].self}];
        const std::size_t number = nth[from]++;
        if (number >= tags.size() || !tags[number]) {
          find(plan, "receives nothing that is known from rank ", from);
          continue;
        }
        put(plan, recv.view, *tags[number]);
        const bool transition = tags[number]->kind == StateTag::Kind::transition;
        (transition ? ledger_.received[plan].transitions : ledger_.received[plan].states) +=
            size_bytes(DType::f32) * recv.view.numel();
      }
    }
  }

  // The rows of a view of rows, by their places in the sequence. They must be neighbours.
  std::optional<std::pair<std::int64_t, std::int64_t>> rows_of(std::size_t plan, const View& view) {
    const std::int64_t step = view.strides[1], count = view.shape[1];
    const std::int64_t local = step == 0 ? 0 : view.offset / step;
    if (trades_) return std::pair(local, local + count);
    const std::vector<std::int64_t>& rows = pieces_.rows_of(indices_[plan]);
    if (count < 1 || local + count > static_cast<std::int64_t>(rows.size())) return std::nullopt;
    for (std::int64_t i = 1; i < count; ++i) {
      if (rows[idx(local + i)] != rows[idx(local)] + i) return std::nullopt;
    }
    return std::pair(rows[idx(local)], rows[idx(local)] + count);
  }
  // The same of several views, which must be of the same rows.
  std::optional<std::pair<std::int64_t, std::int64_t>> rows_of_all(std::size_t plan,
                                                                   std::initializer_list<const View*> views) {
    const auto first = rows_of(plan, **views.begin());
    for (const View* view : views) {
      if (rows_of(plan, *view) != first) {
        find(plan, "works on different rows of its operands");
        return std::nullopt;
      }
    }
    if (!first) find(plan, "works on rows that are no neighbours in the sequence");
    return first;
  }

  template <class Op>
  void run_kernel(std::size_t plan, const Op& op) {
    if constexpr (std::is_same_v<Op, Copy>) {
      if (trades_) return;  // rows that are packed
      const std::optional<StateTag> tag = tag_of(plan, op.in);
      tag ? put(plan, op.out, *tag) : find(plan, "copies what is no state");
    } else if constexpr (std::is_same_v<Op, Fill>) {
      if (!trades_) find(plan, "fills what no step of a recurrence wants filled");  // padding of rows
    } else if constexpr (kIsRecurrence<Op>) {
      run_step(plan, op);
    } else {
      find(plan, "is no step of a recurrence");
    }
  }

  void run_step(std::size_t plan, const RecurrenceSummary& op) {
    const auto rows = rows_of_all(plan, {&op.k, &op.v, &op.log_decay, &op.beta});
    if (!rows || crosses_document(plan, *rows)) return;
    put(plan, op.state, {StateTag::Kind::state, rows->first, rows->second});
    if (!is_absent(op.transition))
      put(plan, op.transition, {StateTag::Kind::transition, rows->first, rows->second});
  }
  void run_step(std::size_t plan, const RecurrenceSummaryGradient& op) {
    const auto rows = rows_of_all(plan, {&op.q, &op.k, &op.log_decay, &op.beta, &op.dout});
    if (!rows || crosses_document(plan, *rows)) return;
    put(plan, op.dstate, {StateTag::Kind::gradient, rows->first, rows->second});
  }
  void run_step(std::size_t plan, const RecurrenceJoin& op) {
    const auto through = tag_of(plan, op.transition), in = tag_of(plan, op.in), own = tag_of(plan, op.out);
    const auto is = [](const std::optional<StateTag>& tag, StateTag::Kind kind) {
      return tag && tag->kind == kind;
    };
    if (!is(through, StateTag::Kind::transition) || !in) {
      find(plan, "joins ", text(in), " by ", text(through));
    } else if (!op.accumulate) {
      // T of the later rows times T of the earlier ones.
      if (!is(in, StateTag::Kind::transition) || in->end != through->begin || op.transposed)
        find(plan, "joins ", text(in), " by ", text(through));
      put(plan, op.out, {StateTag::Kind::transition, in->begin, through->end});
    } else {
      // What comes in meets the rows that `out` is of: behind it, or in the backward pass before it.
      const StateTag::Kind kind = op.transposed ? StateTag::Kind::gradient : StateTag::Kind::state;
      const bool meets = is(in, kind) && is(own, kind) && own->begin == through->begin &&
                         own->end == through->end &&
                         (op.transposed ? in->begin == own->end : in->end == own->begin);
      if (!meets) find(plan, "adds ", text(in), " by ", text(through), " to ", text(own));
      if (own) put(plan, op.out, {kind, std::min(in->begin, own->begin), std::max(in->end, own->end)});
    }
  }
  void run_step(std::size_t plan, const RecurrenceForward& op) {
    const auto rows = rows_of_all(plan, {&op.q, &op.k, &op.v, &op.log_decay, &op.beta, &op.out});
    if (!rows) return;
    check_before(plan, *rows, op.state), check_starts(plan, *rows, op.starts);
    count_rows(plan, *rows);
    if (is_absent(op.final_state)) return;
    const std::int64_t begin = std::max(state_begin(rows->second - 1), before_of(plan, *rows, op.state));
    put(plan, op.final_state, {StateTag::Kind::state, begin, rows->second});
  }
  void run_step(std::size_t plan, const RecurrenceBackward& op) {
    const auto rows = rows_of_all(plan, {&op.q, &op.k, &op.v, &op.log_decay, &op.beta, &op.dout, &op.dq,
                                         &op.dk, &op.dv, &op.dlog_decay, &op.dbeta});
    if (!rows) return;
    check_before(plan, *rows, op.state), check_starts(plan, *rows, op.starts);
    const std::int64_t end = pieces_.document_end(rows->second - 1);
    const std::optional<StateTag> behind = is_absent(op.dstate) ? std::nullopt : tag_of(plan, op.dstate);
    const std::optional<StateTag> wanted =
        end == rows->second ? std::nullopt
                            : std::optional(StateTag{StateTag::Kind::gradient, rows->second, end});
    if (behind != wanted)
      find(plan, "of rows [", rows->first, ", ", rows->second, ") begins with ", text(behind), ", not with ",
           text(wanted));
    count_rows(plan, *rows);
  }

  using RowRange = std::pair<std::int64_t, std::int64_t>;
  bool crosses_document(std::size_t plan, const RowRange& rows) {
    const bool crosses = pieces_.document_end(rows.first) < rows.second;
    if (crosses) find(plan, "puts several documents of rows [", rows.first, ", ", rows.second, ") together");
    return crosses;
  }
  void check_before(std::size_t plan, const RowRange& rows, const View& state) {
    const std::int64_t begin = state_begin(rows.first);
    const std::optional<StateTag> before = is_absent(state) ? std::nullopt : tag_of(plan, state);
    const std::optional<StateTag> wanted =
        begin == rows.first ? std::nullopt
                            : std::optional(StateTag{StateTag::Kind::state, begin, rows.first});
    if (before != wanted)
      find(plan, "of rows [", rows.first, ", ", rows.second, ") begins with ", text(before), ", not with ",
           text(wanted));
  }
  // The first row whose state the step's rows see, by what it was given.
  std::int64_t before_of(std::size_t plan, const RowRange& rows, const View& state) const {
    const std::optional<StateTag> before = is_absent(state) ? std::nullopt : tag_of(plan, state);
    return before && before->end == rows.first ? before->begin : rows.first;
  }
  void check_starts(std::size_t plan, const RowRange& rows, const std::vector<std::int64_t>& starts) {
    std::vector<std::int64_t> wanted;
    for (std::int64_t row = rows.first + 1; row < rows.second; ++row) {
      if (pieces_.document_begin(row) == row) wanted.push_back(row - rows.first);
    }
    if (starts != wanted)
      find(plan, "starts documents at rows ", join(starts, ","), " where they begin at ", join(wanted, ","));
  }
  void count_rows(std::size_t plan, const RowRange& rows) {
    for (std::int64_t row = rows.first; row < rows.second; ++row) ++computed_[plan][idx(row)];
  }

  // ---- audits ----

  void audit_rows(std::size_t plan) {
    std::vector<int> wanted(idx(problem_.seq_len), trades_ ? 1 : 0);
    if (!trades_) {
      for (const std::int64_t row : pieces_.rows_of(indices_[plan])) wanted[idx(row)] = 1;
    }
    for (std::int64_t row = 0; row < problem_.seq_len; ++row) {
      const int found = computed_[plan][idx(row)];
      if (found != wanted[idx(row)])
        find_at(plan, "computes row ", row, " ", found, " times, not ", wanted[idx(row)]);
    }
  }

  void audit_bytes() {
    const std::vector<StateBytes> expected = expected_state_bytes(request_, pass_);
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      const StateBytes &found = ledger_.received[plan], &wanted = expected[idx(indices_[plan])];
      ledger_.expected.push_back(wanted);
      const auto audit = [&](std::string_view what, std::int64_t here, std::int64_t should,
                             bool may_be_more) {
        if (here == should || (may_be_more && here > should)) return;
        ledger_.bytes.add([&] {
          return str("rank ", plans_[plan].self, " received ", here, " bytes of ", what, " where ", should,
                     " must come");
        });
      };
      audit("states", found.states, wanted.states, false);
      audit("transitions", found.transitions, wanted.transitions, false);
      audit("rows", found.rows, wanted.rows, has_padding());
    }
  }
  // Collectives have equal counts: rows of ranks that have fewer travel with padding.
  bool has_padding() const {
    for (std::size_t i = 1; i < request_.ranks.size(); ++i) {
      if (pieces_.rows_of(static_cast<int>(i)).size() != pieces_.rows_of(0).size()) return true;
    }
    return false;
  }

  const RecurrenceRequest& request_;
  const RecurrenceProblem& problem_;
  const RecurrencePass pass_;
  const std::span<const Plan> plans_;
  const SequencePieces pieces_;
  const bool trades_;         // ranks have whole sequences of some heads
  std::vector<int> indices_;  // by plan: which cp rank it is
  std::vector<PlanWalk> walks_;
  std::map<std::tuple<std::size_t, BufferId, std::int64_t>, StateTag> tags_;  // by plan, buffer, offset
  std::vector<std::vector<int>> computed_;                                    // by plan and row
  RecurrenceLedger ledger_;
};

}  // namespace

RecurrenceLedger keep_ledger(const RecurrenceRequest& request, RecurrencePass pass,
                             std::span<const Plan> plans) {
  return StateKeeper(request, pass, plans).keep();
}

}  // namespace cp::sim
