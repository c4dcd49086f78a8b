// Redistributions: two legal layouts of one tensor, and options.
#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/placement/layout.h"
#include "sim/fuzz/draw.h"
#include "sim/proof/exhaustive/index_oracle.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

// The most elements of a tensor that is moved with data. Chosen, so that a case stays within milliseconds. A
// tensor that is only planned has no such limit.
constexpr std::int64_t kMaxElements = 4000;

class RedistributionDraw {
 public:
  RedistributionDraw(Numbers& numbers, const Swarm& swarm) : numbers_(numbers), swarm_(swarm) {}

  proto::Redistribute job() {
    const Mesh mesh = any_mesh();
    const bool crosses = swarm_.take(numbers_, "cross_mesh");
    const Mesh to_mesh = crosses ? another_mesh(mesh) : mesh;
    is_planned_alone_ = mesh.size() > kMostRunRanks || swarm_.take(numbers_, "huge");
    choose_dtypes();
    const Shape shape = any_shape(mesh, to_mesh);
    choose_reductions(mesh);
    Layout source = any_layout(mesh, shape, true);
    Layout target = any_layout(to_mesh, shape, mesh == to_mesh);
    if (mesh == to_mesh) agree_on_partials(source, target);

    proto::Redistribute job;
    job.set_mesh(mesh.to_string());
    if (to_mesh != mesh) job.set_to_mesh(to_mesh.to_string());
    job.set_shape(shape.empty() ? "scalar" : join(shape, "x"));
    job.set_dtype(to_proto(dtype_));
    if (travel_ != dtype_) job.set_travel_dtype(to_proto(travel_));
    job.set_from(placements_to_string(source));
    job.set_to(placements_to_string(target));
    job.set_seed(numbers_.next() % 1000);
    choose_options(job);
    choose_gradient(job, source, target);
    if (swarm_.take(numbers_, "target"))
      job.set_target(swarm_.choose<std::string>(
          numbers_, {{"sm80", "sm80"}, {"sm90", "sm90"}, {"sm100", "sm100"}, {"sm120", "sm120"}}));
    return job;
  }

 private:
  // Of more ranks, a case is only planned. Chosen: a run has a thread for each rank.
  static constexpr int kMostRunRanks = 64;

  // ---- meshes ----

  std::vector<MeshAxis> any_axes() {
    enum class Kind { few, ones, many, wide, thousand };
    const Kind kind =
        swarm_.choose<Kind>(numbers_, {{"mesh.few", Kind::few},
                                       {"mesh.few.again", Kind::few},
                                       {"mesh.ones", Kind::ones},
                                       {"mesh.many", Kind::many},
                                       {"mesh.wide", Kind::wide},
                                       {"mesh.thousand", numbers_.one_in(40) ? Kind::thousand : Kind::few}});
    // `left` bounds the product of the sizes, so that all kinds but the last stay small enough to be run.
    // Axes of one rank cost nothing, and there may be more of them than the planner takes of others.
    std::vector<int> sizes;
    switch (kind) {
      case Kind::few:
        for (int left = 12, n = static_cast<int>(numbers_.in(1, 3)); n > 0; --n) {
          sizes.push_back(static_cast<int>(numbers_.in(1, std::min(4, left))));
          left /= sizes.back();
        }
        break;
      case Kind::ones:
        sizes.assign(idx(numbers_.one_in(4) ? numbers_.in(16, 24) : numbers_.in(1, 4)), 1);
        sizes[numbers_.below(sizes.size())] = static_cast<int>(numbers_.in(1, 5));
        break;
      case Kind::many:
        for (int left = 16, n = static_cast<int>(numbers_.in(4, 12)); n > 0; --n) {
          sizes.push_back(left > 1 && !numbers_.one_in(3) ? numbers_.of({2, left >= 3 ? 3 : 2}) : 1);
          left /= sizes.back();
        }
        break;
      case Kind::wide:
        sizes.push_back(numbers_.of({5, 7, 8, 11, 13, 16, 17, 31}));
        if (numbers_.one_in(2)) sizes.push_back(numbers_.of({1, 2}));
        break;
      case Kind::thousand:
        for (int left = 1024; left > 1 && sizes.size() < 13;) {
          sizes.push_back(static_cast<int>(numbers_.of({2, 2, 3, 4, 8, 16})));
          sizes.back() = std::min(sizes.back(), left);
          left /= sizes.back();
        }
        break;
    }
    std::vector<MeshAxis> axes;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      axes.push_back({std::string(1, static_cast<char>('a' + i)), sizes[i]});
    return axes;
  }

  static int num_ranks(const std::vector<MeshAxis>& axes) {
    int product = 1;
    for (const MeshAxis& axis : axes) product *= axis.size;
    return product;
  }

  // Over the ranks from 0, or over some of a few more, in any order.
  Mesh over_some_ranks(std::vector<MeshAxis> axes) {
    const int count = num_ranks(axes);
    if (!swarm_.take(numbers_, "mesh.permuted")) return Mesh(std::move(axes));
    std::vector<Rank> ranks(idx(count + 3));
    std::iota(ranks.begin(), ranks.end(), 0);
    numbers_.shuffle(ranks);
    ranks.resize(idx(count));
    return Mesh(std::move(axes), std::move(ranks));
  }
  Mesh any_mesh() { return over_some_ranks(any_axes()); }

  Mesh another_mesh(const Mesh& mesh) {
    if (numbers_.one_in(2)) return any_mesh();
    std::vector<MeshAxis> axes = mesh.axes();
    std::vector<Rank> ranks = mesh.ranks();
    if (numbers_.one_in(2)) axes = {{"flat", mesh.size()}};
    numbers_.shuffle(axes);
    if (numbers_.one_in(2)) numbers_.shuffle(ranks);
    return Mesh(std::move(axes), std::move(ranks));
  }

  // ---- tensors ----

  void choose_dtypes() {
    dtype_ = swarm_.choose<DType>(numbers_, {{"f32", DType::f32},
                                             {"f16", DType::f16},
                                             {"bf16", DType::bf16},
                                             {"i32", DType::i32},
                                             {"i64", DType::i64}});
    travel_ = dtype_;
    if (is_floating(dtype_) && swarm_.take(numbers_, "travel"))
      travel_ = numbers_.of({DType::f32, DType::f16, DType::bf16});
  }

  Shape any_shape(const Mesh& mesh, const Mesh& to_mesh) {
    Shape shape;
    const auto dims =
        swarm_.choose<int>(numbers_, {{"dims.1", 1}, {"dims.2", 2}, {"dims.3", 3}, {"dims.4", 4}});
    for (int dim = 0; dim < dims; ++dim) {
      const Mesh& by = numbers_.one_in(3) ? to_mesh : mesh;
      const std::int64_t size =
          numbers_.one_in(4) ? by.size() : by.axis_size(static_cast<int>(numbers_.below(idx(by.num_axes()))));
      enum class Kind { near, empty, one, few, prime };
      switch (swarm_.choose<Kind>(numbers_, {{"size.near", Kind::near},
                                             {"size.near.again", Kind::near},
                                             {"size.empty", numbers_.one_in(4) ? Kind::empty : Kind::near},
                                             {"size.one", Kind::one},
                                             {"size.few", Kind::few},
                                             {"size.prime", Kind::prime}})) {
        case Kind::near:
          shape.push_back(std::max<std::int64_t>(0, size * numbers_.in(1, 3) + numbers_.in(-1, 1)));
          break;
        case Kind::empty:
          shape.push_back(0);
          break;
        case Kind::one:
          shape.push_back(1);
          break;
        case Kind::few:  // than ranks
          shape.push_back(numbers_.in(1, std::max<std::int64_t>(1, size - 1)));
          break;
        case Kind::prime:
          shape.push_back(numbers_.of({2, 3, 5, 7, 11, 13, 17, 23}));
          break;
      }
    }
    if (is_planned_alone_) {
      // Offsets beyond 2^31 and 2^32, of one dimension: pieces of several would lie in billions of stretches.
      if (numbers_.one_in(2)) return {shape.front() + (std::int64_t{1} << numbers_.in(20, 33))};
      return shape;
    }
    while (numel(shape) > kMaxElements) *std::max_element(shape.begin(), shape.end()) /= 2;
    return shape;
  }

  void choose_reductions(const Mesh& mesh) {
    reductions_.clear();
    if (!swarm_.take(numbers_, "partial")) return;
    const auto op = swarm_.choose<ReduceOp>(numbers_, {{"sum", ReduceOp::sum},
                                                       {"sum.again", ReduceOp::sum},
                                                       {"min", ReduceOp::min},
                                                       {"max", ReduceOp::max},
                                                       {"product", ReduceOp::product}});
    reductions_.assign(idx(mesh.num_axes()), op);
    if (op != ReduceOp::sum || !is_floating(dtype_)) return;
    // Means over more ranks have no exact values in 16 bits.
    int most = 8;
    const bool all = swarm_.take(numbers_, "avg.all");
    for (std::size_t axis = 0; axis < reductions_.size(); ++axis) {
      const int size = mesh.axis_size(static_cast<int>(axis));
      if (size > most || size > 4 || !(all || swarm_.take(numbers_, "avg"))) continue;
      most /= size;
      reductions_[axis] = ReduceOp::avg;
    }
  }

  // ---- layouts ----

  Layout any_layout(const Mesh& mesh, const Shape& shape, bool may_be_partial) {
    std::vector<Placement> placements(idx(mesh.num_axes()), Replicate{});
    std::vector<std::vector<int>> order(shape.size());
    enum class Kind { replicate, partial, shard };
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const Kind kind = swarm_.choose<Kind>(
          numbers_, {{"replicate", Kind::replicate},
                     {"partials", may_be_partial && !reductions_.empty() ? Kind::partial : Kind::shard},
                     {"shard", Kind::shard},
                     {"shard.again", Kind::shard}});
      if (kind == Kind::replicate) continue;
      if (kind == Kind::partial) {
        placements[idx(axis)] = Partial{reductions_[idx(axis)]};
        continue;
      }
      std::vector<int>& axes = order[numbers_.below(order.size())];
      const std::size_t at =
          swarm_.take(numbers_, "axis_order") ? numbers_.below(axes.size() + 1) : axes.size();
      axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(at), axis);
    }
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] > kMaxElements) {
        for (const int axis : order[dim]) placements[idx(axis)] = Shard{static_cast<int>(dim), coarse()};
        continue;
      }
      // Some splits depend on how many elements they divide, so what the axes before have left to their ranks
      // is listed here, each list once.
      std::vector<Indices> lists(1, Indices(idx(shape[dim])));
      std::iota(lists.front().begin(), lists.front().end(), 0);
      for (const int axis : order[dim]) {
        const Split split = nested_split(lists, shape[dim], mesh.axis_size(axis));
        placements[idx(axis)] = Shard{static_cast<int>(dim), split};
        std::vector<Indices> narrowed;
        for (const Indices& list : lists) {
          for (int i = 0; i < mesh.axis_size(axis); ++i)
            narrowed.push_back(split_elements(split, list, mesh.axis_size(axis), i));
        }
        std::sort(narrowed.begin(), narrowed.end());
        narrowed.erase(std::unique(narrowed.begin(), narrowed.end()), narrowed.end());
        lists = std::move(narrowed);
      }
    }
    return make_layout(mesh, std::move(placements), shape, dtype_, std::move(order));
  }

  Split of_any_length() {
    switch (swarm_.choose<int>(
        numbers_,
        {{"chunked", 0}, {"chunked.again", 0}, {"balanced", 1}, {"head_tail", 2}, {"striped", 3}})) {
      case 1:
        return Balanced{};
      case 2:
        return HeadTail{};
      case 3:
        return Striped{numbers_.in(1, 5)};
      default:
        return Chunked{};
    }
  }

  // Of a dimension so long that index sets of fine stripes would have more runs than they may
  // (shared/placement/index_set.h).
  Split coarse() {
    switch (swarm_.choose<int>(numbers_, {{"chunked", 0}, {"balanced", 1}, {"head_tail", 2}})) {
      case 1:
        return Balanced{};
      case 2:
        return HeadTail{};
      default:
        return Chunked{};
    }
  }

  // Cuts of [0, total] in ascending order, 0 and total included: documents, some of them empty.
  std::vector<std::int64_t> cuts(std::int64_t total, std::int64_t inner) {
    std::vector<std::int64_t> result = {0, total};
    for (; inner > 0; --inner) result.push_back(numbers_.in(0, total));
    std::sort(result.begin(), result.end());
    return result;
  }
  // `parts` sizes that add up to the length, some of them 0.
  std::vector<std::int64_t> sizes(std::int64_t length, int parts) {
    std::vector<std::int64_t> result = cuts(length, parts - 1);
    std::adjacent_difference(result.begin(), result.end(), result.begin());
    result.erase(result.begin());
    return result;
  }

  // One that divides each of the lists that earlier axes left among `parts`.
  Split nested_split(const std::vector<Indices>& lists, std::int64_t dim_size, int parts) {
    // Explicit sizes and owners fit one length only, and sizes for each document one list only.
    const Indices& list = lists.front();
    const bool is_one = lists.size() == 1;
    const bool is_one_length = std::all_of(lists.begin(), lists.end(),
                                           [&](const Indices& other) { return other.size() == list.size(); });
    const auto length = static_cast<std::int64_t>(list.size());
    enum class Kind { any, sized, dealt, documents, documents_sized };
    switch (
        swarm_.choose<Kind>(numbers_, {{"split.any", Kind::any},
                                       {"split.any.again", Kind::any},
                                       {"sized", is_one_length ? Kind::sized : Kind::any},
                                       {"dealt", is_one_length ? Kind::dealt : Kind::any},
                                       {"per_sequence", Kind::documents},
                                       {"per_sequence.sized", is_one ? Kind::documents_sized : Kind::any}})) {
      case Kind::sized:
        return Sized{sizes(length, parts)};
      case Kind::dealt: {
        Dealt dealt{numbers_.in(1, 5), {}};
        for (std::int64_t begin = 0; begin < length; begin += dealt.block)
          dealt.owners.push_back(numbers_.in(0, parts - 1));
        return dealt;
      }
      case Kind::documents:
        return PerSequence{cuts(dim_size, numbers_.in(0, 5)),
                           std::visit(
                               [](const auto& rule) -> InnerSplit {
                                 if constexpr (std::is_constructible_v<InnerSplit, decltype(rule)>)
                                   return rule;
                                 return Chunked{};
                               },
                               of_any_length())};
      case Kind::documents_sized: {
        SizedEach each;
        const std::vector<std::int64_t> documents = cuts(dim_size, numbers_.in(0, 5));
        for (std::size_t k = 1; k < documents.size(); ++k) {
          each.sizes.push_back(
              sizes(static_cast<std::int64_t>(elements_within(list, documents[k - 1], documents[k]).size()),
                    parts));
        }
        return PerSequence{documents, each};
      }
      default:
        return of_any_length();
    }
  }

  // Values pending one reduction are no contributions to another.
  static void agree_on_partials(const Layout& source, Layout& target) {
    for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
      const auto* held = std::get_if<Partial>(&source.placements[axis]);
      auto* wanted = std::get_if<Partial>(&target.placements[axis]);
      if (held != nullptr && wanted != nullptr) *wanted = *held;
    }
  }

  // ---- options ----

  void choose_options(proto::Redistribute& job) {
    if (swarm_.take(numbers_, "objective.bytes")) job.set_objective(proto::Redistribute::bytes);
    if (swarm_.take(numbers_, "tight"))
      job.set_max_memory_factor(numbers_.of({0.05, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0}));
    else if (travel_ != dtype_)
      job.set_max_memory_factor(2);             // a cast shard beside the others
    if (swarm_.take(numbers_, "steps.free")) {  // so that chains of many steps win
      job.mutable_cost()->set_step_latency_us(0.01);
      job.mutable_cost()->set_peer_latency_us(0.001);
      job.mutable_cost()->set_local_latency_us(0.001);
    }
    if (swarm_.take(numbers_, "nodes"))
      job.mutable_cost()->set_ranks_per_node(static_cast<int>(numbers_.of({1, 2, 3})));
  }

  void choose_gradient(proto::Redistribute& job, const Layout& source, const Layout& target) {
    if (!swarm_.take(numbers_, "gradient")) return;
    for (const Layout* layout : {&source, &target}) {  // other reductions have none
      const auto op = reduction(*layout);
      if (op && *op != ReduceOp::sum && *op != ReduceOp::avg) return;
    }
    if (!is_floating(dtype_) && (is_partial(source) || is_partial(target))) return;
    job.set_gradient(numbers_.one_in(2) ? proto::Redistribute::adjoint : proto::Redistribute::replicated);
    // The dual of a Replicate is a Partial, which more steps and so more memory may be needed for.
    if (job.max_memory_factor() < 2) job.set_max_memory_factor(2);
    if (!is_floating(dtype_) || source.mesh != target.mesh || !swarm_.take(numbers_, "gradient_scale"))
      return;
    for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
      const Placement &from = source.placements[axis], &to = target.placements[axis];
      const bool splits = std::holds_alternative<Replicate>(from) && std::holds_alternative<Shard>(to);
      const bool gathers = std::holds_alternative<Shard>(from) && std::holds_alternative<Replicate>(to);
      if (!splits && !gathers) continue;
      job.set_gradient_scale(numbers_.one_in(2) ? proto::Redistribute::up : proto::Redistribute::down);
      return;
    }
  }

  Numbers& numbers_;
  const Swarm& swarm_;
  bool is_planned_alone_ = false;
  DType dtype_ = DType::f32, travel_ = DType::f32;
  std::vector<ReduceOp> reductions_;  // of the mesh's axes, where they are partial; empty: none is
};

}  // namespace

proto::Redistribute draw_searched_redistribution(Numbers& numbers) {
  const std::vector<int> sizes = numbers.of(std::vector<std::vector<int>>{{2}, {3}, {4}, {2, 2}, {2, 2}});
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    axes.push_back(str(static_cast<char>('a' + i), "=", sizes[i]));
  proto::Redistribute job;
  job.set_mesh(join(axes, ","));
  Shape shape;
  for (std::int64_t dims = numbers.in(1, 2); dims > 0; --dims)
    shape.push_back(4 * numbers.in(1, 4) + numbers.of({0, 0, 0, 1, -1}));
  job.set_shape(join(shape, "x"));
  const auto op = numbers.of<std::string>({"sum", "sum", "min", "max", "product"});
  std::vector<bool> was_partial;
  const auto placements = [&](bool is_source) {
    std::vector<std::string> each;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool may_be_partial = is_source || was_partial[i];
      const std::int64_t kind = numbers.in(0, may_be_partial ? 4 : 3);
      each.push_back(kind == 0   ? "R"
                     : kind == 4 ? str("P(", op, ")")
                                 : str("S(", numbers.below(shape.size()), ")"));
      if (is_source) was_partial.push_back(kind == 4);
    }
    return join(each, ",");
  };
  job.set_from(placements(true));
  job.set_to(placements(false));
  job.set_dtype(to_proto(numbers.of({DType::f32, DType::bf16, DType::i64})));
  proto::CostModel& cost = *job.mutable_cost();
  if (numbers.one_in(2)) cost.set_ranks_per_node(static_cast<int>(numbers.of({1, 2})));
  if (numbers.one_in(3)) (*cost.mutable_axis_gbps())["a"] = numbers.of({1.0, 50.0});
  if (numbers.one_in(2)) {  // bytes count, not steps
    cost.set_step_latency_us(0.01), cost.set_peer_latency_us(0.001), cost.set_local_latency_us(0.001);
    cost.set_node_gbps(0.01), cost.set_network_gbps(0.001);
  }
  job.set_seed(numbers.next() % 1000);
  return job;
}

proto::Redistribute draw_redistribution(Numbers& numbers, const Swarm& swarm) {
  return RedistributionDraw(numbers, swarm).job();
}

}  // namespace cp::sim
