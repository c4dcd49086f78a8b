// Layers whose rows are at two homes: where each layer has them, and what goes from home to home.
//
// The ledger here knows nothing of index sets: it deals rows one by one, as parallel_layout.h and strategy.h
// say in words, and follows each of them through the copies and exchanges of all ranks' plans.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/plan/operations.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_plan.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const LayerKind kFull, kWindow{4, {}, false, Mixer::attention, true},
    kScan{{}, {}, false, Mixer::recurrence, true}, kMlp{{}, {}, false, Mixer::none, true};

// Layers "FWSM": full attention, with a window, with a recurrence, with an MLP alone.
StepRequest request_of(const std::string& layers, const std::string& layout) {
  StepRequest request = small_request(layout);
  std::vector<LayerKind> kinds;
  for (const char letter : layers)
    kinds.push_back(letter == 'F' ? kFull : letter == 'W' ? kWindow : letter == 'S' ? kScan : kMlp);
  request.model.layers = std::ssize(kinds);
  set_layers(request.model, kinds);
  if (layers.find('S') != std::string::npos)
    request.model.recurrence = Recurrence{RecurrenceRule::delta, 4, 4, 4, 4, 4, false};
  return request;
}

std::vector<int> homes_of(const std::string& layers, const std::string& layout) {
  const StepRequest request = request_of(layers, layout);
  return homes_of_layers(request.model, request.workload, request.layout);
}

TEST(Homes, AreThoseOfTheLayersAndOfWhatIsBehind) {
  const std::string ring = "cp=2,strategy=ring,balance=head_tail";
  EXPECT_THAT(homes_of("FWFW", ring), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(homes_of("FWFW", ring + ",window_balance=contiguous"), ElementsAre(0, 1, 0, 1, 1));
  EXPECT_THAT(homes_of("WWF", ring + ",window_balance=contiguous"), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(homes_of("FSW", ring + ",window_balance=contiguous"), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(homes_of("FSW", ring + ",scan_balance=contiguous"), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(homes_of("FSW", ring + ",window_balance=contiguous,scan_balance=contiguous"),
              ElementsAre(0, 1, 1, 1));
  // An MLP alone stays where rows are, or are first.
  EXPECT_THAT(homes_of("MSMMFM", ring + ",scan_balance=contiguous"), ElementsAre(1, 1, 1, 1, 0, 0, 0));
  // A window that holds the sequence cuts nothing.
  StepRequest request = request_of("FW", ring + ",window_balance=contiguous");
  request.model.kinds[1].window = 24;
  EXPECT_THAT(homes_of_layers(request.model, request.workload, request.layout), ElementsAre(0, 0, 0));
}

// Rows cross the border of stages where the layer behind it has them.
TEST(Homes, AtABorderAreThoseOfTheLayerBehindIt) {
  const StepRequest request =
      request_of("FWFW", "pp=2,cp=2,strategy=ring,balance=head_tail,window_balance=contiguous");
  const auto of_stage = [&](int stage) {
    return homes_of_stage(request.model, request.workload, request.layout, stage);
  };
  EXPECT_THAT(of_stage(0), ElementsAre(0, 1, 0));
  EXPECT_THAT(of_stage(1), ElementsAre(0, 1, 1));
}

TEST(Homes, HaveTextsAndRefusals) {
  const std::string text =
      "cp=2,strategy=ring,balance=head_tail,window_strategy=need_only,window_balance=contiguous,"
      "scan_balance=contiguous";
  const ParallelLayout layout = parse_parallel_layout(text);
  EXPECT_EQ(to_string(layout), text);
  EXPECT_EQ(layout.window_balance, Balance{});
  EXPECT_EQ(parse_parallel_layout("cp=2,scan_balance=same"), parse_parallel_layout("cp=2"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("cp=2,window_balance=contiguos"); }),
              HasSubstr("window_balance=contiguos: cannot read the balance 'contiguos'"));
  const auto refusal = [](const std::string& layers, const std::string& of) {
    const StepRequest request = request_of(layers, of);
    const auto refused = refuse(request.model, request.workload, request.layout);
    return refused ? refused->text() : "legal";
  };
  EXPECT_EQ(refusal("FWS", text), "legal");
  EXPECT_THAT(refusal("FS", "cp=2,balance=head_tail,window_balance=contiguous"),
              HasSubstr("none cuts 24 tokens; use window_balance=same"));
  EXPECT_THAT(refusal("FW", "cp=2,balance=head_tail,scan_balance=contiguous"),
              HasSubstr("no layer has one; use scan_balance=same"));
  EXPECT_THAT(refusal("FW", "cp=2,balance=head_tail,window_balance=head_tail"),
              HasSubstr("window_balance=head_tail is the balance of all layers; use window_balance=same"));
  EXPECT_THAT(refusal("FW", "cp=2,strategy=ulysses,window_balance=head_tail"),
              HasSubstr("with ulysses over all ranks there is none; use window_balance=same"));
  EXPECT_THAT(refusal("FW", "cp=2,balance=striped:1,window_balance=contiguous"),
              HasSubstr("use balance=head_tail, or window_balance=same"));
  EXPECT_THAT(refusal("FW", "cp=2,balance=head_tail,window_balance=striped:2"),
              HasSubstr("use window_balance=contiguous"));
  StepRequest serving = request_of("FW", "cp=2,balance=head_tail,window_balance=contiguous");
  serving.workload.phase = Phase::prefill;
  EXPECT_THAT(refuse(serving.model, serving.workload, serving.layout)->text(),
              HasSubstr("has the cached rows of all layers at one home; use window_balance=same"));
  EXPECT_THAT(
      refusal("WW", "cp=2,balance=head_tail,window_balance=contiguous"),
      HasSubstr("balance=head_tail is that of no layer: all have their rows where contiguous puts them; "
                "use balance=contiguous"));
  // A core of their own is no other one only because they have a balance of their own.
  EXPECT_THAT(refusal("FW",
                      "cp=2,strategy=need_only,window_strategy=need_only,balance=head_tail,"
                      "window_balance=contiguous"),
              HasSubstr("window_strategy=need_only is the strategy of all layers"));
}

// ---- the ledger ----

// The tokens of each cp rank, of one sequence.
std::vector<std::vector<std::int64_t>> dealt(std::int64_t length, const ParallelLayout& layout, bool halves) {
  const std::int64_t ulysses = layout.strategy.ulysses_degree, ring = layout.cp / ulysses;
  // As even as possible, and the first ones one more.
  const auto cut = [](const std::vector<std::int64_t>& all, std::int64_t parts, std::int64_t part) {
    const std::int64_t size = std::ssize(all), least = size / parts, more = size % parts;
    const std::int64_t begin = part * least + std::min(part, more);
    return std::vector<std::int64_t>(all.begin() + begin,
                                     all.begin() + begin + least + (part < more ? 1 : 0));
  };
  std::vector<std::int64_t> all;
  for (std::int64_t token = 0; token < length; ++token) all.push_back(token);
  std::vector<std::vector<std::int64_t>> ranks(idx(layout.cp));
  for (std::int64_t r = 0; r < ring; ++r) {
    std::vector<std::int64_t> own = halves ? cut(all, 2 * ring, r) : cut(all, ring, r);
    if (halves) {
      for (const std::int64_t token : cut(all, 2 * ring, 2 * ring - 1 - r)) own.push_back(token);
    }
    for (std::int64_t u = 0; u < ulysses; ++u)
      ranks[idx(layout.strategy.ulysses_inner ? r * ulysses + u : u * ring + r)] = cut(own, ulysses, u);
  }
  return ranks;
}

constexpr std::int64_t kPad = -1;

// What each rank of a cp group, tp rank by tp rank, has: tokens of all sequences, numbered through, and pads.
std::vector<std::vector<std::int64_t>> rows_at(const StepRequest& request, const Balance& balance) {
  const ParallelLayout& layout = request.layout;
  const std::int64_t length = request.workload.seq_len;
  std::vector<std::vector<std::int64_t>> rows;
  for (const auto& own : dealt(length, layout, balance.kind == Balance::Kind::head_tail)) {
    std::vector<std::int64_t> all;
    for (std::int64_t sequence = 0; sequence < layout.micro_batch; ++sequence) {
      for (const std::int64_t token : own) all.push_back(sequence * length + token);
    }
    while (std::ssize(all) % layout.row_ranks() != 0) all.push_back(kPad);
    const std::int64_t each = std::ssize(all) / layout.row_ranks();
    for (int t = 0; t < layout.row_ranks(); ++t)
      rows.emplace_back(all.begin() + t * each, all.begin() + (t + 1) * each);
  }
  return rows;
}

// One move of rows, as one rank's plan has it.
struct Move {
  std::string label;
  std::int64_t count = 1;  // iterations
  std::vector<Copy> stays;
  std::vector<View> padded;
  Exchange exchange;
};

std::vector<Move> moves_of(const Plan& plan) {
  std::vector<Move> moves;
  Move next;
  for (const StepRef& ref : steps_of(plan)) {
    const std::string& label = ref.step->label;
    if (label == "rows that stay") next.stays.push_back(std::get<Copy>(std::get<Kernel>(ref.step->work)));
    if (label == "pad rows of a home")
      next.padded.push_back(std::get<Fill>(std::get<Kernel>(ref.step->work)).out);
    if (label != "rows to the next home" && label != "gradients of rows to the home before") continue;
    next.label = label, next.count = ref.count;
    next.exchange = std::get<Exchange>(std::get<Collective>(ref.step->work));
    moves.push_back(std::exchange(next, {}));
  }
  return moves;
}

// Whether the n-th move of all ranks turns `from` into `to`, and each rank receives just what it lacks.
bool turns(const std::vector<std::vector<Move>>& moves, std::size_t n, std::int64_t hidden,
           const std::vector<std::vector<std::int64_t>>& from,
           const std::vector<std::vector<std::int64_t>>& to) {
  // A view begins at some row of a piece.
  const auto row_of = [&](const View& view, const std::vector<std::int64_t>& rows) {
    return view.offset / hidden % std::ssize(rows);
  };
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<View>> sent;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    for (const Transfer& send : moves[rank][n].exchange.sends)
      sent[{static_cast<std::int32_t>(rank), send.peer}].push_back(send.view);
  }
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> taken;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    const Move& move = moves[rank][n];
    std::vector<std::int64_t> got(to[rank].size(), -2);
    const auto put = [&](const View& target, const std::vector<std::int64_t>& source, std::int64_t first) {
      for (std::int64_t i = 0; i < target.shape[0]; ++i) {
        const std::int64_t row = row_of(target, to[rank]) + i;
        if (row >= std::ssize(got) || first + i >= std::ssize(source)) return;  // is not what `to` has
        got[idx(row)] = source[idx(first + i)];
      }
    };
    for (const Copy& copy : move.stays) put(copy.out, from[rank], row_of(copy.in, from[rank]));
    for (const View& view : move.padded) put(view, std::vector<std::int64_t>(idx(view.shape[0]), kPad), 0);
    std::int64_t received = 0;
    for (const Transfer& recv : move.exchange.recvs) {
      const std::pair way{recv.peer, static_cast<std::int32_t>(rank)};
      const std::vector<View>& views = sent[way];
      std::size_t& next = taken[way];
      if (next >= views.size() || views[next].shape != recv.view.shape) return false;
      put(recv.view, from[idx(recv.peer)], row_of(views[next++], from[idx(recv.peer)]));
      received += recv.view.shape[0];
    }
    if (got != to[rank]) return false;
    const std::set<std::int64_t> had(from[rank].begin(), from[rank].end());
    const auto lacks = std::count_if(to[rank].begin(), to[rank].end(), [&](std::int64_t token) {
      return token != kPad && !had.contains(token);
    });
    if (received != lacks) return false;
  }
  for (const auto& [way, views] : sent) {
    if (taken[way] != views.size()) return false;
  }
  return true;
}

// Of one cp group, in the plans of all its ranks: every move takes all rows from one home to the other, and
// there are as many of each kind as neighbouring layers say.
void follow_rows(const StepRequest& request, StepPart part, int stage) {
  const ParallelLayout& layout = request.layout;
  const auto of_home = [&](int home) { return rows_at(request, strategy_at_home(layout, home).balance); };
  const std::array<std::vector<std::vector<std::int64_t>>, 2> rows{of_home(0), of_home(1)};
  std::vector<std::vector<Move>> moves;
  for (const Rank rank :
       RankGroups(layout, RankGroups(layout, 0).on_pipeline_rank(stage % layout.pp)).row_group())
    moves.push_back(moves_of(step_plan(request, part, stage, rank)));
  // By what they carry, and where to.
  std::map<std::pair<std::string, int>, std::int64_t> found;
  for (const auto& of_rank : moves) RC_ASSERT(of_rank.size() == moves.front().size());
  for (std::size_t n = 0; n < moves.front().size(); ++n) {
    int to = -1;
    for (const int home : {0, 1}) {
      if (turns(moves, n, request.model.hidden, rows[idx(1 - home)], rows[idx(home)])) to = home;
    }
    RC_ASSERT(to >= 0);
    found[{moves.front()[n].label, to}] += moves.front()[n].count;
  }
  const std::vector<int> homes = homes_of_stage(request.model, request.workload, layout, stage);
  std::map<std::pair<std::string, int>, std::int64_t> expected;
  for (std::size_t layer = 0; layer + 1 < homes.size(); ++layer) {
    if (homes[layer] == homes[layer + 1]) continue;
    if (part != StepPart::backward) ++expected[{"rows to the next home", homes[layer + 1]}];
    if (part != StepPart::forward) ++expected[{"gradients of rows to the home before", homes[layer]}];
  }
  RC_ASSERT(found == expected);
}

RC_GTEST_PROP(Homes, RowsGoWhereTheNextLayerHasThem, ()) {
  const int cp = pick("cp", rc::gen::element(2, 3, 4, 6));
  const bool halves = pick("halves", rc::gen::element(true, false));
  StepRequest request = request_of(
      pick("layers", rc::gen::element<std::string>("FWFWFW", "FWWWFWWWF", "SSSFSSSF", "SMSMFMSM", "WFSF")),
      str("cp=", cp, ",strategy=ring,balance=", halves ? "head_tail" : "contiguous"));
  ParallelLayout& layout = request.layout;
  const Balance other{halves ? Balance::Kind::contiguous : Balance::Kind::head_tail};
  const bool has_windows = std::any_of(request.model.kinds.begin(), request.model.kinds.end(),
                                       [](const LayerKind& kind) { return kind.window.has_value(); });
  if (request.model.recurrence) layout.scan_balance = other;
  if (has_windows && (!layout.scan_balance || pick("both", rc::gen::element(true, false))))
    layout.window_balance = other;
  layout.tp = pick("tp", rc::gen::element(1, 2, 4));
  if (cp % 2 == 0 && cp > 2 && layout.tp < 4)  // of four heads
    layout.strategy.ulysses_degree = pick("ulysses", rc::gen::element(1, 1, 2));
  layout.strategy.ulysses_inner = pick("ulysses_inner", rc::gen::element(true, false));
  layout.sequence_parallel = layout.tp == 1 || pick("sequence_parallel", rc::gen::element(true, true, false));
  layout.pp = pick("pp", rc::gen::element(1, 1, 2));
  layout.micro_batch = pick("micro_batch", rc::gen::element(1, 1, 2, 3));
  layout.recompute = pick("recompute", rc::gen::element(Recompute{}, Recompute{Recompute::Kind::full, 1},
                                                        Recompute{Recompute::Kind::every, 2}));
  layout.host_activations = pick("host", rc::gen::element(false, false, true));
  layout.order = pick("order", rc::gen::elementOf(axis_orders()));
  request.workload.seq_len = pick("seq_len", rc::gen::inRange(24, 60));
  request.workload.global_batch = layout.micro_batch;
  const auto refused = refuse(request.model, request.workload, layout);
  if (refused) RC_FAIL(refused->text());
  for (const StepPart part : parts_of(request)) {
    if (part == StepPart::update) continue;
    for (int stage = 0; stage < layout.pp; ++stage) follow_rows(request, part, stage);
    try {
      check(plans_of_all_ranks(request, part));
    } catch (const Error& error) {
      RC_FAIL(str(name(part), ": ", error.what()));
    }
  }
}

// Layers whose homes alternate are still a Repeat, which has both ways in its body.
TEST(Homes, ThatAlternateRepeat) {
  StepRequest request = request_of("FWFWFWFWFWFW", "cp=2,strategy=ring,balance=head_tail");
  const auto steps = [](const StepRequest& of) {
    const Plan plan = step_plan(of, StepPart::micro_batch, 0, 0);
    return steps_of(plan).size();
  };
  const std::size_t at_one = steps(request);
  request.layout.window_balance = Balance{};
  const std::size_t at_two = steps(request);
  request.model.layers = 24;
  request.model.order.insert(request.model.order.end(), request.model.order.begin(),
                             request.model.order.end());
  EXPECT_EQ(steps(request), at_two);
  // The last two layers stand alone, since nothing goes anywhere behind them.
  EXPECT_LT(at_two, 5 * at_one / 2);
}

// ---- memory ----

TEST(Homes, KeepWhatPlansStackUp) {
  for (const char* layers : {"FWFWFWFW", "WWWFWWWF", "SSSFSSSF", "FSWMSMFW"}) {
    for (const char* layout :
         {"cp=4,strategy=ring,balance=head_tail", "tp=2,cp=4,strategy=all_gather,balance=contiguous",
          "cp=4,strategy=ring,ulysses_degree=2,balance=head_tail,micro_batch=2",
          "pp=2,cp=2,balance=head_tail"}) {
      for (const char* recompute : {"none", "selective", "full", "every:2"}) {
        for (const bool host : {false, true}) {
          StepRequest request = request_of(layers, layout);
          ParallelLayout& l = request.layout;
          if (host && l.pp > 1) continue;  // of stages that have layers at other homes one needs most
          request.workload.seq_len = 256, request.workload.global_batch = 8;
          l.recompute = parse_recompute(recompute), l.host_activations = host;
          const bool halves = l.strategy.balance.kind == Balance::Kind::head_tail;
          const Balance other{halves ? Balance::Kind::contiguous : Balance::Kind::head_tail};
          if (request.model.recurrence) l.scan_balance = other;
          if (std::string(layers).find('W') != std::string::npos) l.window_balance = other;
          // The first stage keeps most of all, and the rank in the middle, to which states come in.
          const Rank middle = RankGroups(l, 0).cp_group()[static_cast<std::size_t>(l.cp / 2)];
          const Plan plan = step_plan(request, parts_of(request).front(), 0, middle);
          std::int64_t declared = 0;  // but for halos, of which nothing is claimed
          for (const Buffer& buffer : plan.buffers) {
            const bool counted =
                buffer.name.starts_with("activations/") && !buffer.name.starts_with("activations/halo");
            declared += counted ? buffer.bytes() : 0;
          }
          // The last layer's output, which the loss uses up, and in flight once here.
          const std::int64_t x = l.micro_batch * 256 / l.cp / l.row_ranks() * request.model.hidden * 2;
          const std::int64_t passes = l.host_activations ? 1 : l.pp,
                             positions = 256 * request.model.rotated_dim() * 4;
          EXPECT_EQ(least_memory_of(request.model, request.workload, l, {}).activations,
                    host ? declared : passes * (declared - positions - x) + positions)
              << layers << " " << to_string(l);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cp::testing
