#include "sim/planner/search/layout_space.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/context_parallel/cores.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/cost/timeline/estimate.h"

namespace cp::sim {
namespace {

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int degree = 1; degree <= number; ++degree) {
    if (number % degree == 0) all.push_back(degree);
  }
  return all;
}

template <class T>
std::vector<T> chosen(const std::optional<T>& fixed, std::vector<T> all) {
  return fixed ? std::vector<T>{*fixed} : std::move(all);
}

// The axes that have several ranks, in order of neighbours.
std::vector<std::string> axes_of(const ParallelLayout& layout) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh_axes(layout)) {
    if (axis.size > 1) axes.push_back(axis.name);
  }
  return axes;
}

constexpr int kPieces[] = {1, 2, 4, 8};  // that a search tries

}  // namespace

LayoutSpace::LayoutSpace(const PlanQuestion& question, bool every_choice)
    : question_(question),
      training_(question.workload.phase == Phase::training),
      every_choice_(every_choice),
      runs_plans_(find_framework(question.software.framework) == Framework::cprun &&
                  question.frameworks.empty()) {}

bool LayoutSpace::can_be_said(const ParallelLayout& layout, RulePart part) const {
  return std::all_of(question_.frameworks.begin(), question_.frameworks.end(), [&](Framework framework) {
    return can_say(framework, part, {question_.model, question_.workload, layout, fp8_products(question_)});
  });
}

void LayoutSpace::throw_cannot_be_said(const ParallelLayout& family) const {
  ParallelLayout layout = family;
  // Of what there is a choice of, what can be said.
  const auto first_of = [](const auto& said, const auto& all) {
    return said.empty() ? all.front() : said.front();
  };
  layout.strategy = first_of(strategies(family), all_strategies(family));
  layout.keys = fixed_keys(family);
  set_fixed(layout);
  layout.recompute = first_of(recomputes(family), all_recomputes(family));
  layout.loss_chunks = first_of(loss_chunks(family), all_loss_chunks(family));
  const Savings saved = first_of(savings(family, layout.recompute), all_savings(family));
  layout.mlp_chunks = saved.mlp_chunks, layout.host_activations = saved.host_activations;
  std::vector<std::string> lost;
  for (const Framework framework : question_.frameworks) {
    FrameworkCase said{question_.model, question_.workload, layout, fp8_products(question_)};
    for (std::string& what : express(framework, std::move(said)).lost) lost.push_back(std::move(what));
  }
  throw InvalidInput(str("no layout with the keys that are fixed can be expressed for ",
                         framework_names(question_), ": ", join(lost, "; "), "; fix fewer keys"));
}

// Where it is the degrees that do not fit, the question without these keys throws that.
void LayoutSpace::throw_nothing_sharded() const {
  PlanQuestion without = question_;
  without.fixed.reset_shard_choices();
  LayoutSpace(without, every_choice_).families();
  const std::string keys = join(items_of(question_.fixed.shard_choices()), " and ");
  throw InvalidInput(
      str(keys, ": this is about parameters that are sharded (zero=3, dp_shard or cp above 1, pp=1), and no ",
          "layout of ", question_.cluster.num_gpus(),
          " GPUs with the other keys that are fixed shards them; leave ", keys,
          " out, or fix fewer of tp, pp, dp_shard, dp_replicate, sharding and zero"));
}

std::vector<ParallelLayout> LayoutSpace::families(std::int64_t* left_out) const {
  const Fixed& fixed = question_.fixed;
  const int world = question_.cluster.num_gpus();
  std::vector<ParallelLayout> families;
  for (const int tp : chosen(fixed.tp, divisors(world))) {
    if (world % tp != 0) continue;
    for (const int pp : chosen(fixed.pp, divisors(world / tp))) {
      if (world / tp % pp != 0) continue;
      for (const int cp : chosen(fixed.cp, divisors(world / tp / pp))) {
        if (world / tp / pp % cp != 0) continue;
        const int dp = world / tp / pp / cp;
        for (const int shard : chosen(fixed.dp_shard, training_ ? divisors(dp) : std::vector<int>{1})) {
          if (dp % shard != 0 || dp / shard != fixed.dp_replicate.value_or(dp / shard)) continue;
          ParallelLayout layout;
          layout.tp = tp, layout.pp = pp, layout.cp = cp, layout.dp_shard = shard,
          layout.dp_replicate = dp / shard;
          add_orders(layout, families);
        }
      }
    }
  }
  // These keys belong to the strategy, but they can contradict a family's cp. Such a family has no member
  // at all, and must not count as one that was looked at.
  if (fixed.ulysses_degree || fixed.inner_ring || fixed.pieces || fixed.keys)
    std::erase_if(families, [&](const ParallelLayout& family) { return all_strategies(family).empty(); });
  if (families.empty()) {
    if (!items_of(fixed.shard_choices()).empty()) throw_nothing_sharded();
    throw InvalidInput(str("the degrees that are fixed do not fit ", world,
                           " GPUs: their product must divide this number",
                           training_ ? "" : ", and serving has no dp_shard",
                           "; fix fewer of tp, cp, pp, dp_shard and dp_replicate, or use other --nodes"));
  }
  if (question_.frameworks.empty()) return families;
  // What the frameworks cannot express is counted here and not only left out: an answer tells how much of the
  // space it did not look at. The last family whose degrees can be expressed is kept for the error message,
  // which is then about the choice that fails and not about the degrees.
  ParallelLayout nearest = families.front();
  std::erase_if(families, [&](const ParallelLayout& family) {
    const auto all = static_cast<std::int64_t>(all_strategies(family).size() * all_recomputes(family).size() *
                                               all_loss_chunks(family).size() * all_savings(family).size());
    const bool degrees = can_be_said(family, RulePart::degrees);
    const std::int64_t said = degrees ? num_members(family) : 0;
    if (degrees) nearest = family;
    if (left_out != nullptr) *left_out += all - said;
    return said == 0;
  });
  if (families.empty()) throw_cannot_be_said(nearest);
  return families;
}

void LayoutSpace::add_orders(ParallelLayout layout, std::vector<ParallelLayout>& families) const {
  const Fixed& fixed = question_.fixed;
  const std::int64_t batch = question_.workload.global_batch;
  const std::int64_t of_replica = std::max<std::int64_t>(1, batch / layout.dp());
  std::vector<std::int64_t> micro_batches;
  for (const std::int64_t size : {1, 2, 4, 8, 16}) {
    if (size <= of_replica && of_replica % size == 0) micro_batches.push_back(size);
  }
  if (!training_) micro_batches = {of_replica};
  std::vector<int> experts{1};
  if (question_.model.experts) experts = divisors(static_cast<int>(question_.model.experts->count));
  std::set<std::vector<std::string>> known;
  for (const AxisOrder order : chosen(fixed.order, axis_orders())) {
    layout.order = order;
    if (!known.insert(axes_of(layout)).second) continue;
    for (const ShardingGroup sharding :
         chosen(fixed.sharding, {ShardingGroup::dp_shard_cp, ShardingGroup::dp_shard})) {
      if (sharding == ShardingGroup::dp_shard && (layout.cp == 1 || !training_)) continue;
      layout.sharding = sharding;
      for (const int ep : chosen(fixed.ep, experts)) {
        layout.ep = ep;
        for (const int stages :
             chosen(fixed.virtual_stages,
                    layout.pp > 1 && training_ ? std::vector<int>{1, 2, 4} : std::vector<int>{1})) {
          layout.virtual_stages = stages;
          for (const std::int64_t micro_batch : chosen(fixed.micro_batch, micro_batches)) {
            layout.micro_batch = micro_batch;
            add_variants(layout, families);
          }
        }
      }
    }
  }
}

// What is sharded, and how tp ranks share rows; what means the same for a layout counts once.
void LayoutSpace::add_variants(ParallelLayout layout, std::vector<ParallelLayout>& families) const {
  const Fixed& fixed = question_.fixed;
  const bool shares = training_ && layout.sharding_size() > 1;
  const int as_usual = layout.zero_stage();
  std::vector<int> stages{as_usual};
  if (shares && layout.pp == 1) stages = {3, 2, 1};
  for (const int zero : stages) {
    if (shares ? zero != fixed.zero.value_or(every_choice_ ? zero : as_usual) : zero != as_usual) continue;
    layout.zero = zero == as_usual ? 0 : zero;
    // When shards are gathered and reduced is asked for, not searched.
    static_cast<ShardChoices&>(layout) = fixed.shard_choices();
    if ((!shares || zero != 3) && layout.has_shard_choices()) continue;
    for (const bool sequence_parallel : {true, false}) {
      const bool wanted =
          layout.tp == 1 || fixed.sequence_parallel.value_or(every_choice_ ? sequence_parallel : true);
      if (sequence_parallel != wanted) continue;
      layout.sequence_parallel = sequence_parallel;
      families.push_back(layout);
    }
  }
}

std::vector<Strategy> LayoutSpace::strategies(const ParallelLayout& family) const {
  std::vector<Strategy> all = all_strategies(family);
  if (question_.frameworks.empty()) return all;
  std::erase_if(all, [&](const Strategy& strategy) {
    ParallelLayout layout = family;
    layout.strategy = strategy, layout.keys = fixed_keys(family);
    set_fixed(layout);
    return !can_be_said(layout, RulePart::strategy);
  });
  return all;
}

std::vector<Recompute> LayoutSpace::recomputes(const ParallelLayout& family) const {
  std::vector<Recompute> all = all_recomputes(family);
  if (question_.frameworks.empty()) return all;
  std::erase_if(all, [&](const Recompute& recompute) {
    ParallelLayout layout = family;
    layout.recompute = recompute;
    return !can_be_said(layout, RulePart::recompute);
  });
  return all;
}

std::vector<int> LayoutSpace::loss_chunks(const ParallelLayout& family) const {
  std::vector<int> all = all_loss_chunks(family);
  if (question_.frameworks.empty()) return all;
  std::erase_if(all, [&](int chunks) {
    ParallelLayout layout = family;
    layout.loss_chunks = chunks;
    return !can_be_said(layout, RulePart::loss);
  });
  return all;
}

namespace {

// What the cores try between or without Ulysses groups, on `cp` ranks. The core that a Strategy has by
// default comes first of each place: a family's leanest member has the first strategy.
std::vector<Strategy> strategies_of_cores(int ulysses, int cp) {
  using Place = CoreVariant::Place;
  std::vector<const CoreFacts*> cores(all_cores().begin(), all_cores().end());
  std::stable_partition(cores.begin(), cores.end(),
                        [](const CoreFacts* core) { return core->core == Strategy{}.core; });
  std::vector<Strategy> all;
  const auto add = [&](const CoreFacts& core, const CoreVariant& variant) {
    Strategy strategy;
    strategy.core = core.core, strategy.balance = variant.balance, strategy.rotation = variant.rotation;
    strategy.ulysses_degree = ulysses, strategy.ulysses_inner = variant.ulysses_inner;
    if (variant.place != Place::inner_rings) return all.push_back(strategy);
    for (const int inner : divisors(cp)) {
      if (inner == 1 || inner == cp) continue;
      strategy.inner_ring = inner;
      all.push_back(strategy);
    }
  };
  for (const Place place : {Place::any_degree, Place::hybrid, Place::alone, Place::inner_rings}) {
    if (place != Place::any_degree && (place == Place::hybrid) != (ulysses > 1)) continue;
    for (const CoreFacts* core : cores) {
      for (const CoreVariant& variant : core->searched) {
        if (variant.place == place) add(*core, variant);
      }
    }
  }
  return all;
}

}  // namespace

// Strategies are named for, and cut by, what all layers have alike.
AttentionProblem LayoutSpace::any_attention(const ParallelLayout& layout) const {
  return attention_problem(question_.model, question_.workload, layout, first_attention(question_.model));
}

const std::vector<Strategy>& LayoutSpace::all_strategies(const ParallelLayout& family) const {
  return strategies_.of({family.cp, family.tp, family.micro_batch}, [&] { return make_strategies(family); });
}

std::vector<Strategy> LayoutSpace::make_strategies(const ParallelLayout& family) const {
  const Fixed& fixed = question_.fixed;
  if (family.cp == 1) return {Strategy{}};
  std::vector<Strategy> all;
  const auto add = [&](const Strategy& strategy) { all.push_back(as_run_by(strategy, question_.software)); };
  if (fixed.strategy) {
    AttentionProblem problem = any_attention(family);
    Strategy strategy =
        named_strategy({*fixed.strategy, fixed.ulysses_degree, fixed.inner_ring}, problem, family.cp);
    for (const Balance::Kind kind : facts(strategy.core).balances) {
      strategy.balance.kind = kind;
      add(strategy);
    }
  } else {
    const std::int64_t heads = std::max<std::int64_t>(1, question_.model.q_heads / family.tp);
    for (const int ulysses : divisors(family.cp)) {
      if (ulysses > heads || (fixed.ulysses_degree && *fixed.ulysses_degree != ulysses)) continue;
      if (ulysses == family.cp) {
        add(whole_ulysses(family.cp));
      } else {
        for (const Strategy& strategy : strategies_of_cores(ulysses, family.cp)) add(strategy);
      }
    }
  }
  if (fixed.balance) {
    for (Strategy& strategy : all) strategy.balance = *fixed.balance;
  }
  // A key that a strategy does not have is ignored for it. So a question may fix the rotation of rings, and
  // strategies without a ring stay in the search.
  for (Strategy& strategy : all) {
    const bool hybrid = strategy.ulysses_degree > 1 && strategy.ulysses_degree < family.cp;
    if (fixed.ulysses_inner && hybrid) strategy.ulysses_inner = *fixed.ulysses_inner;
    if (fixed.rotation && facts(strategy.core).has_rotation) strategy.rotation = *fixed.rotation;
  }
  if (fixed.inner_ring) {
    std::erase_if(all, [&](const Strategy& strategy) { return strategy.inner_ring != *fixed.inner_ring; });
  }
  const AttentionProblem problem = any_attention(family);
  for (Strategy& strategy : all) {
    if (fixed.slots && arrives_in_turn(strategy, family.cp)) strategy.slots = *fixed.slots;
    if (fixed.pieces && most_pieces(problem, family.cp, strategy) > 1) strategy.pieces = *fixed.pieces;
    if (fixed.merges) strategy.merges = *fixed.merges;
  }
  if (fixed.pieces) {
    std::erase_if(all, [&](const Strategy& strategy) {
      return strategy.pieces > most_pieces(problem, family.cp, strategy);
    });
  }
  // What refuse() says of mixers beside attention; where one balance is fixed, it says so itself.
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(question_.model) && !fixed.balance)
      std::erase_if(all, [&](const Strategy& strategy) { return !facts->takes(strategy.balance); });
  }
  // Rows go between homes of these two balances alone (refuse()); what is fixed for some layers leaves those
  // of all layers that it can stand beside.
  const auto asks = [](const std::optional<std::optional<Balance>>& own) { return own && *own; };
  if (asks(fixed.window_balance) || asks(fixed.scan_balance)) {
    std::erase_if(all, [&](const Strategy& strategy) {
      return strategy.balance != Balance{} && strategy.balance != Balance{Balance::Kind::head_tail};
    });
  }
  // What cannot send latent rows does not, whatever is fixed: pass_q, and pieces.
  if (fixed_keys(family) == Strategy::Keys::latent) {
    ParallelLayout sends = family;
    std::erase_if(all, [&](const Strategy& strategy) {
      sends.strategy = strategy;
      return !may_send_rows(question_, sends);
    });
  }
  // What is fixed, and what the software changes (as_run_by), can make two strategies equal.
  std::vector<Strategy> different;
  for (const Strategy& strategy : all) {
    if (std::find(different.begin(), different.end(), strategy) == different.end())
      different.push_back(strategy);
  }
  return different;
}

// Other models, and layouts without cp, ignore the key, and so does decoding, where rows travel anyway.
Strategy::Keys LayoutSpace::fixed_keys(const ParallelLayout& family) const {
  const bool means_something =
      family.cp > 1 && question_.model.latent && question_.workload.phase != Phase::decode;
  return means_something ? question_.fixed.keys.value_or(Strategy::Keys::heads) : Strategy::Keys::heads;
}

// A core or a balance that all layers of the member have anyway, or that is of a ring where it has none, is
// not said again; that of a home that rows cannot go to is, and refused.
void LayoutSpace::set_fixed(ParallelLayout& member) const {
  if (member.cp == 1) return;
  const Fixed& fixed = question_.fixed;
  if (fixed.scan) member.scan = *fixed.scan;
  const bool has_ring = member.strategy.ulysses_degree < member.cp;
  const std::optional<Core> core = fixed.window_core.value_or(std::nullopt);
  member.window_core = has_ring && core != member.strategy.core ? core : std::nullopt;
  const auto own = [&](const std::optional<std::optional<Balance>>& asked) {
    const std::optional<Balance> balance = asked.value_or(std::nullopt);
    return has_ring && balance != member.strategy.balance ? balance : std::nullopt;
  };
  member.window_balance = own(fixed.window_balance), member.scan_balance = own(fixed.scan_balance);
}

bool may_send_rows(const PlanQuestion& question, const ParallelLayout& layout) {
  if (!question.model.latent || layout.cp == 1) return false;
  ParallelLayout sends = layout;
  sends.keys = Strategy::Keys::latent;
  if (question.model.latent->rope_dim == question.model.head_dim ||
      latent_use(question.model, question.workload, sends) != LatentUse::rows)
    return false;
  // All layers with attention have it alike, but for the core of those with a window.
  return std::all_of(question.model.kinds.begin(), question.model.kinds.end(), [&](const LayerKind& kind) {
    if (kind.mixer != Mixer::attention) return true;
    const AttentionProblem problem = attention_problem(question.model, question.workload, sends, kind);
    return !refuse(problem, sends.cp, strategy_of(sends, problem));
  });
}

bool LayoutSpace::may_choose_rows(const ParallelLayout& layout) const {
  return runs_plans_ && !question_.fixed.keys && layout.keys == Strategy::Keys::heads &&
         may_send_rows(question_, layout);
}

int LayoutSpace::most_pieces_tried(const ParallelLayout& layout) const {
  const int own = layout.strategy.pieces;
  if (layout.keys == Strategy::Keys::latent) return own;  // rows have no heads to cut
  // Decoding moves next to nothing of attention.
  if (layout.cp == 1 || !runs_plans_ || question_.workload.phase == Phase::decode || question_.fixed.pieces)
    return own;
  const int most = most_pieces(any_attention(layout), layout.cp, layout.strategy);
  int tried = own;
  for (const int pieces : kPieces) {
    if (pieces <= most) tried = std::max(tried, pieces);
  }
  return tried;
}

std::vector<ParallelLayout> LayoutSpace::overlaps(const ParallelLayout& layout) const {
  const int most = most_pieces_tried(layout);
  const bool more_slots = layout.cp > 1 && runs_plans_ && question_.workload.phase != Phase::decode &&
                          !question_.fixed.slots && arrives_in_turn(layout.strategy, layout.cp);
  std::vector<int> numbers{layout.strategy.pieces};
  for (const int pieces : kPieces) {
    if (pieces > numbers.back() && pieces <= most) numbers.push_back(pieces);
  }
  std::vector<ParallelLayout> all;
  for (const int pieces : numbers) {
    for (int slots = layout.strategy.slots; slots <= (more_slots ? kMostSlots : layout.strategy.slots);
         ++slots) {
      all.push_back(layout);
      all.back().strategy.pieces = pieces, all.back().strategy.slots = slots;
    }
  }
  return all;
}

std::vector<Recompute> LayoutSpace::all_recomputes(const ParallelLayout& family) const {
  if (question_.fixed.recompute) return {*question_.fixed.recompute};
  if (!training_) return {Recompute{}};
  std::vector<Recompute> all{
      {Recompute::Kind::none, 1}, {Recompute::Kind::selective, 1}, {Recompute::Kind::full, 1}};
  for (const int every : {2, 4}) {
    if (every <= question_.model.layers / (family.pp * family.virtual_stages))
      all.push_back({Recompute::Kind::every, every});
  }
  return all;
}

std::vector<int> LayoutSpace::all_loss_chunks(const ParallelLayout& family) const {
  if (question_.fixed.loss_chunks) return {*question_.fixed.loss_chunks};
  std::vector<int> chunks{1};
  for (const int more : {4, 16}) {
    if (training_ && more <= question_.workload.seq_len / family.cp) chunks.push_back(more);
  }
  return chunks;
}

std::vector<LayoutSpace::Savings> LayoutSpace::all_savings(const ParallelLayout& family) const {
  const Fixed& fixed = question_.fixed;
  std::vector<int> chunks{1};
  for (const int more : {4, 16}) {
    if (every_choice_ && training_ && !question_.model.experts &&
        more <= question_.workload.seq_len / family.cp)
      chunks.push_back(more);
  }
  std::vector<Savings> all;
  // Two layers are always on the GPU.
  const bool may_leave = training_ && question_.model.layers / (family.pp * family.virtual_stages) > 2;
  for (const bool host : {false, true}) {
    if (host != fixed.host_activations.value_or(host && every_choice_ && may_leave)) continue;
    for (const int number : chosen(fixed.mlp_chunks, chunks)) all.push_back({number, host});
  }
  return all;
}

std::vector<LayoutSpace::Savings> LayoutSpace::savings(const ParallelLayout& family,
                                                       const Recompute& recompute) const {
  std::vector<Savings> all = all_savings(family);
  if (question_.frameworks.empty()) return all;
  std::erase_if(all, [&](const Savings& of) {
    ParallelLayout layout = family;
    layout.recompute = recompute, layout.mlp_chunks = of.mlp_chunks,
    layout.host_activations = of.host_activations;
    return !can_be_said(layout, RulePart::savings);
  });
  return all;
}

std::int64_t LayoutSpace::num_members(const ParallelLayout& family) const {
  const std::vector<Recompute> recomputed = recomputes(family);
  const std::size_t of_loss = loss_chunks(family).size();
  if (question_.frameworks.empty())
    return std::ssize(recomputed) *
           static_cast<std::int64_t>(all_savings(family).size() * all_strategies(family).size() * of_loss);
  std::size_t ways = 0;
  for (const Recompute& recompute : recomputed) ways += savings(family, recompute).size();
  return static_cast<std::int64_t>(ways * strategies(family).size() * of_loss);
}

ParallelLayout LayoutSpace::leanest_member(ParallelLayout family) const {
  // Most questions are about no framework, and this is asked of each family.
  family.strategy =
      question_.frameworks.empty() ? all_strategies(family).front() : strategies(family).front();
  family.keys = fixed_keys(family);
  set_fixed(family);
  const std::vector<Recompute> all = recomputes(family);
  const auto full = std::find(all.begin(), all.end(), Recompute{Recompute::Kind::full, 1});
  family.recompute = full == all.end() ? all.front() : *full;
  const std::vector<int> chunks = loss_chunks(family);
  family.loss_chunks = *std::max_element(chunks.begin(), chunks.end());
  if (const std::vector<Savings> most = savings(family, family.recompute); !most.empty())
    family.mlp_chunks = most.back().mlp_chunks, family.host_activations = most.back().host_activations;
  return family;
}

std::vector<ParallelLayout> LayoutSpace::members(const ParallelLayout& family) const {
  std::vector<ParallelLayout> members;
  const std::vector<Recompute> recomputed = recomputes(family);
  const std::vector<int> chunks = loss_chunks(family);
  std::vector<std::vector<Savings>> saved;
  for (const Recompute& recompute : recomputed) saved.push_back(savings(family, recompute));
  ParallelLayout member = family;
  member.keys = fixed_keys(family);
  for (const Strategy& strategy : strategies(family)) {
    member.strategy = strategy;
    set_fixed(member);
    for (std::size_t i = 0; i < recomputed.size(); ++i) {
      member.recompute = recomputed[i];
      for (const Savings& of : saved[i]) {
        member.mlp_chunks = of.mlp_chunks, member.host_activations = of.host_activations;
        for (const int chunk : chunks) {
          member.loss_chunks = chunk;
          members.push_back(member);
        }
      }
    }
  }
  return members;
}

std::vector<StateScan> lean_scans(const PlanQuestion& question, const ParallelLayout& layout) {
  std::vector<StateScan> scans;
  if (!question.model.recurrence || question.fixed.scan || layout.cp == 1) return scans;
  ParallelLayout lean = layout;
  for (const StateScan scan : {StateScan::sequential, StateScan::heads}) {
    lean.scan = scan;
    if (!refuse(question.model, question.workload, lean)) scans.push_back(scan);
  }
  return scans;
}

}  // namespace cp::sim
