#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/check.h"
#include "shared/plan/plan_text.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/base/numbers.h"
#include "sim/fuzz/laws.h"
#include "sim/fuzz/redistribution_subject.h"
#include "sim/fuzz/timeline_law.h"
#include "sim/proof/exhaustive/exhaustive.h"
#include "sim/proof/exhaustive/layouts.h"
#include "sim/proof/exhaustive/pair_check.h"
#include "traces/plan_proto.h"

namespace cp::sim {
namespace {

// Up to how many ranks a law is checked. Chosen, so that a case stays within milliseconds: the searches grow
// fast with the number of layouts.
constexpr int kMostSearchedRanks = 4;  // by the exhaustive search, and in at most two dimensions
constexpr int kMostChosenRanks = 8;    // for the list of all chains that no other beats

// The search counts whole picoseconds: in either chain each step, and its casts together, are rounded by half
// a one at most.
double rounding_us(const Redistribution& a, const Redistribution& b) {
  return 0.5e-6 * static_cast<double>(a.steps.size() + 1 + b.steps.size() + 1);
}

// Laws of requests, plans and texts: nothing runs.
class PlanLaws : private RedistributionSubject {
 public:
  explicit PlanLaws(const RedistributionSubject& subject) : RedistributionSubject(subject) {}

  void check_all() {
    if (trial_.asks("texts")) texts();
    if (trial_.asks("legality")) legality();
    if (ranks() > kMostRanks) return;
    if (trial_.asks("again")) again();
    if (trial_.asks("relabelled")) relabelled();
    if (trial_.asks("one_rank_axis")) one_rank_axis();
    if (trial_.asks("split_axis")) split_axis();
    if (trial_.asks("permuted_copies")) permuted_copies();
    if (trial_.asks("digests")) digests();
    if (trial_.asks("choices") && ranks() <= kMostChosenRanks) choices();
    if (trial_.asks("exhaustive") && ranks() <= kMostSearchedRanks) exhaustive();
    if (trial_.asks("timeline") && trial_.has_run()) timeline();
  }

 private:
  // ---- what is not allowed ----

  template <class Make>
  void require_refused(const Make& make, const std::string& what) {
    try {
      make();
    } catch (const InvalidInput&) {
      return;
    } catch (const std::exception& error) {
      throw trial_.failure("legality", str(what, " is refused by another kind of error: ", error.what()));
    }
    throw trial_.failure("legality", str(what, " is not refused"));
  }

  // Values that wait for one reduction are no contributions to another; only sums and means go together;
  // whole numbers have no means.
  void legality() {
    const Mesh& mesh = request_.source.mesh;
    const Shape& shape = request_.source.shape;
    const auto all = [&](ReduceOp op, DType dtype) {
      return make_layout(mesh, std::vector<Placement>(idx(mesh.num_axes()), Partial{op}), shape, dtype);
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::product, ReduceOp::avg}) {
      if (mesh.num_axes() == 1) break;
      std::vector<Placement> mixed(idx(mesh.num_axes()), Partial{ReduceOp::max});
      mixed.front() = Partial{op};
      require_refused([&] { make_layout(mesh, mixed, shape, DType::f32); },
                      str("P(", name(op), "),P(max) on ", mesh.to_string()));
    }
    require_refused([&] { all(ReduceOp::avg, DType::i32); }, "a mean of i32");
    const bool has_pairs =
        std::ranges::any_of(mesh.axes(), [](const MeshAxis& axis) { return axis.size > 1; });
    if (!has_pairs) return;
    const Layout sums = all(ReduceOp::sum, DType::f32), most = all(ReduceOp::max, DType::f32);
    require_refused([&] { plan_redistribution(sums, most); }, "P(sum) to P(max)");
    require_refused([&] { plan_redistribution(sums, all(ReduceOp::sum, DType::i32)); }, "f32 to i32");
    require_refused([&] { plan_gradient(most, most); }, "the gradient of P(max)");
  }

  // ---- texts ----

  void text_of(const Layout& layout) {
    const std::string placements = placements_to_string(layout);
    const Layout read = trial_.property("texts", [&] {
      return parse_layout(placements, Mesh::parse(layout.mesh.to_string()), layout.shape, layout.dtype);
    });
    trial_.require(read == layout, "texts", "the text of ", to_string(layout), " reads as ", to_string(read));
  }

  void texts() {
    text_of(request_.source);
    text_of(request_.target);
    if (ranks() > kMostRanks) return;
    for (const Plan& plan : lower_all_scaled(planned_, gradient_.scale, request_.device_target)) {
      trial_.property("texts", [&] {
        trial_.require(parse_plan(to_text(plan)) == plan, "texts", "the plan of rank ", plan.self,
                       " does not come back from its text");
        trial_.require(parse_plan_bytes(serialize_plan(plan)) == plan, "texts", "the plan of rank ",
                       plan.self, " does not come back from its bytes");
      });
      if (plan.self > 2) break;  // they differ in little
    }
  }

  // ---- other ways to say the same ----

  void again() {
    const Gradient second = plan_request(request_);
    trial_.require(second.redistribution.inputs == planned_.inputs, "again",
                   "equal requests have two digests");
    trial_.require(
        lower_all_scaled(second.redistribution, second.scale) == lower_all_scaled(planned_, gradient_.scale),
        "again", "equal requests have two plans");
  }

  // How two plans of one request in other words compare: alike in all that is counted, where both are proven
  // to be the best.
  void require_alike(const Redistribution& a, const Redistribution& b, std::string_view law,
                     const Layout& other) {
    if (a.times_the_best() > 1 || b.times_the_best() > 1) return;
    const bool by_time = a.objective == Objective::time;
    const double ours = by_time ? a.time_us : static_cast<double>(a.wire_bytes_received_max);
    const double theirs = by_time ? b.time_us : static_cast<double>(b.wire_bytes_received_max);
    trial_.require(std::abs(ours - theirs) <= (by_time ? rounding_us(a, b) : 0), law, "the best plan takes ",
                   ours, by_time ? " us, and " : " bytes, and ", theirs, " when it is said as ",
                   to_string(other));
  }

  // Ranks with other numbers, all of one node.
  void relabelled() {
    RedistributeOptions options = forward_options();
    options.cost.ranks_per_node = Mesh::kMaxRanks;
    options.cost.axis_gbps.clear();
    Rank most = 0;
    for (const Layout* layout : {&request_.source, &request_.target}) {
      for (const Rank rank : layout->mesh.ranks()) most = std::max(most, rank);
    }
    const auto renamed = [&](const Layout& layout) {
      std::vector<Rank> ranks = layout.mesh.ranks();
      for (Rank& rank : ranks) rank = 2 * (most - rank);
      return make_layout(Mesh(layout.mesh.axes(), ranks), layout.placements, layout.shape, layout.dtype,
                         layout.shard_axes);
    };
    const Layout source = renamed(request_.source), target = renamed(request_.target);
    require_alike(plan(request_.source, request_.target, options), plan(source, target, options),
                  "relabelled", target);
  }

  // An axis more, at `at` of the new mesh, with this placement; of a dimension that it shards it is the
  // innermost axis.
  static Layout with_axis(const Layout& layout, int at, const Placement& placement, const Mesh& mesh) {
    std::vector<Placement> placements = layout.placements;
    placements.insert(placements.begin() + at, placement);
    std::vector<std::vector<int>> order = layout.shard_axes;
    for (std::vector<int>& axes : order) {
      for (int& known : axes) known += known >= at ? 1 : 0;
    }
    if (const auto* shard = std::get_if<Shard>(&placement)) order[idx(shard->dim)].push_back(at);
    return make_layout(mesh, std::move(placements), layout.shape, layout.dtype, std::move(order));
  }

  void one_rank_axis() {
    if (request_.source.mesh != request_.target.mesh || request_.source.mesh.num_axes() >= 6) return;
    Numbers numbers(request_.seed);
    const int at = static_cast<int>(numbers.in(0, request_.source.mesh.num_axes()));
    std::vector<MeshAxis> axes = request_.source.mesh.axes();
    axes.insert(axes.begin() + at, MeshAxis{"one", 1});
    const Mesh mesh(axes, request_.source.mesh.ranks());
    const auto any = [&]() -> Placement {
      if (request_.source.shape.empty() || numbers.one_in(2)) return Replicate{};
      return Shard{static_cast<int>(numbers.below(request_.source.shape.size())), Chunked{}};
    };
    const Layout source = with_axis(request_.source, at, any(), mesh);
    const Layout target = with_axis(request_.target, at, any(), mesh);
    trial_.require(equivalent(request_.source, source), "one_rank_axis", to_string(request_.source),
                   " is not equivalent to ", to_string(source));
    const RedistributeOptions options = forward_options();
    require_alike(plan(request_.source, request_.target, options), plan(source, target, options),
                  "one_rank_axis", target);
  }

  // The layout on a mesh whose axis `at` is two, of which the first is the outer one. Nothing where that says
  // something else.
  std::optional<Layout> on_split_axis(const Layout& layout, int at, const Mesh& mesh) {
    std::vector<Placement> placements = layout.placements;
    const Placement& placement = layout.placements[idx(at)];
    placements.insert(placements.begin() + at, placement);
    std::vector<std::vector<int>> order = layout.shard_axes;
    for (std::vector<int>& axes : order) {
      for (int& known : axes) known += known > at ? 1 : 0;
      const auto outer = std::find(axes.begin(), axes.end(), at);
      if (outer != axes.end()) axes.insert(outer + 1, at + 1);
    }
    if (const auto* shard = std::get_if<Shard>(&placement)) {
      if (!std::holds_alternative<Chunked>(shard->split)) return std::nullopt;
      // Chunks of chunks are chunks where nothing is left over: of lists that earlier axes left evenly, too.
      std::int64_t parts = 1;
      for (const int axis : layout.shard_axes[idx(shard->dim)]) {
        if (!std::holds_alternative<Chunked>(split_along(layout, axis))) return std::nullopt;
        parts *= layout.mesh.axis_size(axis);
      }
      if (layout.shape[idx(shard->dim)] % parts != 0) return std::nullopt;
    }
    return make_layout(mesh, std::move(placements), layout.shape, layout.dtype, std::move(order));
  }

  void split_axis() {
    const Mesh& mesh = request_.source.mesh;
    if (mesh != request_.target.mesh || mesh.num_axes() >= 6) return;
    for (int at = 0; at < mesh.num_axes(); ++at) {
      const int size = mesh.axis_size(at);
      const int inner = size % 2 == 0 ? 2 : size % 3 == 0 ? 3 : size;
      if (inner == size) continue;
      std::vector<MeshAxis> axes = mesh.axes();
      axes[idx(at)].size = size / inner;
      axes.insert(axes.begin() + at + 1, MeshAxis{"inner", inner});
      const Mesh split(axes, mesh.ranks());
      const auto source = on_split_axis(request_.source, at, split),
                 target = on_split_axis(request_.target, at, split);
      if (!source || !target) continue;
      trial_.require(equivalent(request_.source, *source), "split_axis", to_string(request_.source),
                     " is not equivalent to ", to_string(*source));
      const RedistributeOptions options = forward_options();
      const Redistribution whole = plan(request_.source, request_.target, options),
                           halves = plan(*source, *target, options);
      if (whole.times_the_best() > 1 || halves.times_the_best() > 1) return;
      const bool by_time = whole.objective == Objective::time;
      const double one = by_time ? whole.time_us : static_cast<double>(whole.wire_bytes_received_max);
      const double two = by_time ? halves.time_us : static_cast<double>(halves.wire_bytes_received_max);
      trial_.require(two <= one + (by_time ? rounding_us(whole, halves) : 0), "split_axis",
                     "what one axis moves in ", one, by_time ? " us" : " bytes", " takes ", two,
                     " with the axis in two: ", to_string(*target));
      return;
    }
  }

  // Copies are equal: which rank of a replicated axis is which does not matter.
  void permuted_copies() {
    const Layout& layout = request_.source;
    for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
      if (!std::holds_alternative<Replicate>(layout.placements[idx(axis)]) ||
          layout.mesh.axis_size(axis) == 1)
        continue;
      std::vector<Rank> ranks = layout.mesh.ranks();
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        std::vector<int> at = layout.mesh.coordinates(layout.mesh.ranks()[i]);
        at[idx(axis)] = (at[idx(axis)] + 1) % layout.mesh.axis_size(axis);
        ranks[i] = layout.mesh.rank_at(at);
      }
      const Layout permuted = make_layout(Mesh(layout.mesh.axes(), ranks), layout.placements, layout.shape,
                                          layout.dtype, layout.shard_axes);
      trial_.require(equivalent(layout, permuted), "permuted_copies", to_string(layout),
                     " is not equivalent to ", to_string(permuted));
      RedistributeOptions options = forward_options();
      options.travel_dtype.reset();
      trial_.require(plan(layout, permuted, options).steps.empty(), "permuted_copies",
                     "there are steps from ", to_string(layout), " to ", to_string(permuted));
      return;
    }
  }

  void choices() {
    RedistributeOptions options = forward_options();
    options.objective = Objective::time;
    const std::vector<Redistribution> set = trial_.property(
        "choices", [&] { return pareto_redistributions(request_.source, request_.target, options); });
    trial_.require(!set.empty(), "choices", "no chain at all");
    const Redistribution best = plan(request_.source, request_.target, options);
    trial_.require(set.front().time_us == best.time_us, "choices", "the fastest of all chains takes ",
                   set.front().time_us, " us, and the plan ", best.time_us);
    for (std::size_t i = 1; i < set.size(); ++i) {
      trial_.require(set[i].peak_bytes < set[i - 1].peak_bytes, "choices", "chain ", i, " needs ",
                     set[i].peak_bytes, " bytes, and the faster one before it ", set[i - 1].peak_bytes);
      trial_.require(set[i].times_the_best() > 1 ||
                         set[i].time_us >= set.front().time_us - rounding_us(set[i], set.front()),
                     "choices", "chain ", i, " takes ", set[i].time_us, " us, and the fastest ",
                     set.front().time_us);
    }
    const Redistribution& leanest = set.back();
    std::int64_t peak = 0;
    for (const Plan& lowered : lower_all(leanest)) peak = std::max(peak, peak_bytes(lowered));
    trial_.require(peak == leanest.peak_bytes, "choices", "the leanest chain declares ", leanest.peak_bytes,
                   " bytes, and its plans need ", peak);
  }

  // ---- the exhaustive search ----

  // What it knows: chunks, one reduction, one dtype, no cast, forward.
  bool is_searched() const {
    if (request_.options.travel_dtype || request_.gradient ||
        !is_legal_pair(request_.source, request_.target))
      return false;
    std::set<ReduceOp> ops;
    for (const Layout* layout : {&request_.source, &request_.target}) {
      if (layout->shape.size() > 2 || layout->mesh.num_axes() > 2 || numel(layout->shape) == 0 ||
          numel(layout->shape) > kMostElements)
        return false;
      for (int axis = 0; axis < layout->mesh.num_axes(); ++axis) {
        if (layout->mesh.axis_size(axis) == 1) return false;
        const Placement& placement = layout->placements[idx(axis)];
        const auto* shard = std::get_if<Shard>(&placement);
        if (shard != nullptr && !std::holds_alternative<Chunked>(shard->split)) return false;
        if (const auto* partial = std::get_if<Partial>(&placement)) ops.insert(partial->op);
      }
    }
    return ops.size() <= 1;
  }

  void exhaustive() {
    if (!is_searched()) return;
    const ReduceOp op =
        reduction(request_.source).value_or(reduction(request_.target).value_or(ReduceOp::sum));
    const ExhaustiveSearch search(request_.source.mesh, request_.target.mesh, request_.source.shape,
                                  request_.source.dtype, request_.options.cost,
                                  request_.options.max_memory_factor, op);
    const auto number_of = [&](const Layout& layout, std::size_t from) {
      for (std::size_t i = from; i < search.layouts().size(); ++i) {
        if (search.layouts()[i].layout == layout) return i;
      }
      return search.layouts().size();
    };
    const std::size_t source = number_of(request_.source, 0),
                      target = number_of(request_.target, search.first_target());
    if (source == search.layouts().size() || target == search.layouts().size()) return;
    const auto chains = search.cheapest(source);
    VerifyRedistributeOptions options;
    options.cost = request_.options.cost;
    options.max_memory_factor = request_.options.max_memory_factor;
    VerifyRedistributeResult::Times times;
    const CheckedPair pair =
        check_pair(search, source, target, chains[target - search.first_target()], options, times);
    for (const Finding& finding : pair.findings)
      throw trial_.failure("exhaustive", str(name(finding.fault), ": ", finding.what));
  }

  // Other inputs have another digest: ranks that disagree about one are found by it.
  void digests() {
    const Digest ours = plan(request_.source, request_.target, forward_options()).inputs;
    const auto require_other = [&](const char* what, const Redistribution& other) {
      trial_.require(!(other.inputs == ours), "digests", "a request with another ", what,
                     " has the same digest");
    };
    RedistributeOptions options = forward_options();
    options.cost.network_gbps += 1;
    require_other("network_gbps", plan(request_.source, request_.target, options));
    options = forward_options();
    options.max_memory_factor += 1;
    require_other("max_memory_factor", plan(request_.source, request_.target, options));
    options = forward_options();
    options.objective = options.objective == Objective::time ? Objective::bytes : Objective::time;
    require_other("objective", plan(request_.source, request_.target, options));
    if (!equivalent(request_.source, request_.target) && request_.source.mesh == request_.target.mesh &&
        is_legal_back())
      require_other("direction", plan(request_.target, request_.source, forward_options()));
  }
  bool is_legal_back() const {
    return request_.source.dtype == request_.target.dtype && !request_.options.travel_dtype;
  }

  void timeline() {
    const std::vector<Plan> plans = lower_all_scaled(planned_, gradient_.scale, request_.device_target);
    check_timeline(plans, "dgx-h100", trial_);
  }
};

}  // namespace

void check_redistribution_laws(const RedistributeRequest& request, const Gradient& planned,
                               const Trial& trial) {
  const RedistributionSubject subject(request, planned, trial);
  check_placement_laws(request, trial);
  PlanLaws(subject).check_all();
  check_redistribution_data_laws(subject);
}

}  // namespace cp::sim
