#include "cli/cprun/profile/profile_points.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "sim/cost/timeline/kernel_work.h"

namespace cp::cli {
namespace {

constexpr std::int64_t kKib = 1024, kMib = kKib * kKib, kGib = kKib * kMib;
constexpr std::int64_t kWindow = 4096;    // keys that a query sees in Mask::window; chosen, as in Mistral 7B
constexpr std::int64_t kMergeHead = 128;  // head_dim of what is merged; that of most models
constexpr std::int64_t kPacked = 1024;    // elements in a run that is packed: 8 heads of 128
// Chosen: ranks that share a GPU send over sockets, where larger messages only take longer.
constexpr std::int64_t kMostOverSockets = 64 * kMib;
// The size of a step whose issue is measured. Chosen so small that the step ends before the next one is
// issued.
constexpr std::int64_t kIssuedBytes = kKib;
constexpr DType kType = DType::bf16;

// ---- the grid ----

std::vector<std::int64_t> powers(std::int64_t first, std::int64_t last, std::int64_t ratio) {
  std::vector<std::int64_t> all;
  for (std::int64_t value = first; value <= last; value *= ratio) all.push_back(value);
  return all;
}

struct Sizes {
  std::vector<std::int64_t> seq_lens, head_dims, memory, products, messages, beside;
  std::vector<int> channels;
  std::int64_t q_heads, kv_heads, beside_seq_len, beside_product;
};

Sizes sizes_of(ProfileSize size) {
  switch (size) {
    case ProfileSize::tiny:
      return {{32, 64}, {16}, {4 * kKib}, {32}, {kKib, 4 * kKib}, {4 * kKib}, {0, 1}, 2, 1, 256, 128};
    case ProfileSize::quick:
      return {powers(1024, 16384, 4),
              {128},
              powers(kMib, kGib, 16),
              powers(1024, 8192, 2),
              powers(kKib, kGib, 16),
              {256 * kMib},
              {0, 8},
              32,
              8,
              8192,
              8192};
    case ProfileSize::whole:
      break;
  }
  return {powers(512, 65536, 2),
          {64, 128},
          powers(64 * kKib, 2 * kGib, 4),
          powers(512, 16384, 2),
          powers(kKib, kGib, 4),
          {16 * kMib, 256 * kMib},
          {0, 1, 2, 4, 8, 16, 32},
          32,
          8,
          8192,
          8192};
}

void add_kernels(const Sizes& sizes, std::vector<ProfilePoint>& points) {
  for (const std::int64_t head_dim : sizes.head_dims) {
    for (const auto mask :
         {AttentionPoint::Mask::full, AttentionPoint::Mask::causal, AttentionPoint::Mask::window}) {
      for (const bool backward : {false, true}) {
        for (const std::int64_t seq_len : sizes.seq_lens) {
          if (mask == AttentionPoint::Mask::window && seq_len <= kWindow) continue;  // the causal one
          points.push_back(AttentionPoint{backward, mask, seq_len, sizes.q_heads, sizes.kv_heads, head_dim});
        }
      }
    }
  }
  for (const auto kernel : {MemoryPoint::Kernel::copy, MemoryPoint::Kernel::pack, MemoryPoint::Kernel::cast,
                            MemoryPoint::Kernel::merge}) {
    for (const std::int64_t bytes : sizes.memory) points.push_back(MemoryPoint{kernel, bytes});
  }
  for (const std::int64_t n : sizes.products) points.push_back(ProductPoint{n, n, n});
  points.push_back(IssuePoint{IssuePoint::Step::kernel});
}

void add_collectives(const Sizes& sizes, const ProfileWorld& world, std::vector<ProfilePoint>& points) {
  const std::vector<std::string> operations = {"all_gather", "reduce_scatter", "all_reduce",
                                               "all_to_all", "broadcast",      "exchange"};
  for (const std::string& operation : operations) {
    for (const std::int64_t bytes : sizes.messages) {
      if (!world.shared_gpu || bytes <= kMostOverSockets) points.push_back(CollectivePoint{operation, bytes});
    }
  }
  for (const auto step : {IssuePoint::Step::collective, IssuePoint::Step::transfer})
    points.push_back(IssuePoint{step});
  if (world.shared_gpu) return;
  for (const int pairs : {1, 4, 8}) {
    if (world.machines < 2 || pairs > world.ranks / world.machines) continue;
    for (const std::int64_t bytes : sizes.messages) points.push_back(PairsPoint{pairs, bytes});
  }
  const auto attention = [&](bool backward) {
    return AttentionPoint{backward,       AttentionPoint::Mask::causal, sizes.beside_seq_len, sizes.q_heads,
                          sizes.kv_heads, sizes.head_dims.back()};
  };
  const ProductPoint product{sizes.beside_product, sizes.beside_product, sizes.beside_product};
  for (const int channels : sizes.channels) {  // outermost: each has communicators of its own
    for (const std::string& operation : operations) {
      for (const std::int64_t bytes : sizes.beside) {
        for (const bool backward : {false, true})
          points.push_back(BesidePoint{{operation, bytes}, attention(backward), channels});
        points.push_back(BesidePoint{{operation, bytes}, product, channels});
      }
    }
  }
}

// ---- plans ----

std::int64_t slots_for(std::int64_t bytes, const ProfilePlanOptions& options) {
  return std::clamp<std::int64_t>((options.cache_bytes + bytes - 1) / std::max<std::int64_t>(bytes, 1), 1,
                                  options.iterations);
}

AttentionProblem problem_of(const AttentionPoint& point) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = point.seq_len;
  problem.q_heads = point.q_heads, problem.kv_heads = point.kv_heads;
  problem.head_dim = problem.v_head_dim = point.head_dim;
  problem.dtype = kType;
  problem.causal = point.mask != AttentionPoint::Mask::full;
  if (point.mask == AttentionPoint::Mask::window) problem.window = kWindow;
  return problem;
}

// The plan of one rank alone: the kernels of attention, and casts and the like around them.
Plan plan_of(const AttentionPoint& point, Rank self, const Target& target) {
  return attention_plan({problem_of(point), {self}, {}, false},
                        point.backward ? AttentionPass::backward : AttentionPass::forward, self, target);
}

bool is_attention(const Step& step) {
  const auto* work = std::get_if<Kernel>(&step.work);
  return work != nullptr && (std::holds_alternative<AttentionForward>(*work) ||
                             std::holds_alternative<AttentionBackward>(*work));
}

// The bytes read and written for one unit of a kernel. A unit is an element that is copied or cast, a run
// that is packed, or a row of one head that is merged.
std::int64_t moved_bytes_of_unit(MemoryPoint::Kernel kernel) {
  switch (kernel) {
    case MemoryPoint::Kernel::copy:
      return 2 + 2;
    case MemoryPoint::Kernel::pack:
      return kPacked * (2 + 2);
    case MemoryPoint::Kernel::cast:
      return 2 + 4;
    case MemoryPoint::Kernel::merge:
      break;
  }
  return kMergeHead * (2 + 4 + 4) + 3 * 4;
}

// Adds the steps of a point to the plan, inside of the Repeat.
class PointPlan {
 public:
  PointPlan(PlanBuilder& builder, Rank self, const ProfileWorld& world, const ProfilePlanOptions& options)
      : b_(builder), self_(self), world_(world.ranks), machines_(world.machines), options_(options) {}

  void add(const AttentionPoint& point) {
    Plan part = plan_of(point, self_, b_.target());
    label(part);
    std::map<std::string, View> windows;
    for (const Buffer& of : part.buffers) {
      if (of.kind == BufferKind::temporary) continue;
      windows[of.name] = flat_view(buffer("attention " + of.name, of.dtype, of.numel), 0, of.numel);
    }
    b_.splice(part, windows, str("attention ", attentions_++, " "));
  }

  void add(const MemoryPoint& point) {
    if (point.kernel == MemoryPoint::Kernel::merge) return add_merge(point);
    if (point.kernel == MemoryPoint::Kernel::pack) return add_pack(point);
    const bool cast = point.kernel == MemoryPoint::Kernel::cast;
    const std::int64_t numel = moved_bytes(point) / moved_bytes_of_unit(point.kernel),
                       slots = slots_for(point.bytes, options_);
    const BufferId in = buffer("in", kType, numel * slots),
                   out = buffer("out", cast ? DType::f32 : kType, numel * slots);
    const Advance advance{numel, slots, 0};
    const View from = flat_view(in, 0, numel, advance), to = flat_view(out, 0, numel, advance);
    if (cast) {
      kernel(Cast{from, to});
    } else {
      kernel(Copy{from, to});
    }
  }

  void add(const ProductPoint& point) {
    const BufferId a = buffer("a", kType, point.m * point.k), b = buffer("b", kType, point.k * point.n),
                   out = buffer("product", kType, point.m * point.n);
    kernel(MatMul{dense_view(a, 0, {point.m, point.k}), dense_view(b, 0, {point.k, point.n}),
                  dense_view(out, 0, {point.m, point.n})});
  }

  void add(const CollectivePoint& point) {
    const std::int64_t block = std::max<std::int64_t>(1, point.bytes / size_bytes(kType) / world_);
    const std::int64_t whole = block * world_;
    std::vector<Rank> all(static_cast<std::size_t>(world_));
    std::iota(all.begin(), all.end(), 0);
    const GroupId group = b_.group("world", all);
    const BufferId x = buffer("x", kType, whole), y = buffer("y", kType, whole);
    const View in = flat_view(x, 0, whole), out = flat_view(y, 0, whole);
    if (point.operation == "all_gather") return collective(AllGather{group, flat_view(x, 0, block), out});
    if (point.operation == "reduce_scatter")
      return collective(ReduceScatter{group, ReduceOp::sum, in, flat_view(y, 0, block)});
    if (point.operation == "all_reduce") return collective(AllReduce{group, ReduceOp::sum, in, out});
    if (point.operation == "all_to_all") return collective(AllToAll{group, in, out});
    if (point.operation == "broadcast") return collective(Broadcast{group, 0, in, out});
    CP_INVARIANT(point.operation == "exchange", point.operation);
    Exchange exchange{group, {{(self_ + 1) % world_, in}}, {{(self_ + world_ - 1) % world_, out}}, {}};
    std::vector<Count> counts;
    for (Rank rank = 0; rank < world_; ++rank) counts.push_back({rank, (rank + 1) % world_, whole});
    exchange.counts = counts_digest(counts);
    collective(std::move(exchange));
  }

  void add(const PairsPoint& point) {
    const int each = world_ / machines_;
    std::vector<Rank> ranks;
    for (const int machine : {0, 1}) {
      for (int i = 0; i < point.pairs; ++i) ranks.push_back(machine * each + i);
    }
    const auto index = std::find(ranks.begin(), ranks.end(), self_) - ranks.begin();
    const auto peer = static_cast<std::int32_t>((index + point.pairs) % (2 * point.pairs));
    const std::int64_t numel = std::max<std::int64_t>(1, point.bytes / size_bytes(kType));
    const GroupId group = b_.group("pairs", ranks);
    const BufferId x = buffer("x", kType, numel), y = buffer("y", kType, numel);
    Exchange exchange{group, {{peer, flat_view(x, 0, numel)}}, {{peer, flat_view(y, 0, numel)}}, {}};
    std::vector<Count> counts;
    for (std::int32_t i = 0; i < 2 * point.pairs; ++i)
      counts.push_back({i, (i + point.pairs) % (2 * point.pairs), numel});
    exchange.counts = counts_digest(counts);
    collective(std::move(exchange));
  }

  void add(const IssuePoint& point) {
    using Step = IssuePoint::Step;
    if (point.step == Step::kernel) return add(MemoryPoint{MemoryPoint::Kernel::copy, kIssuedBytes});
    add(CollectivePoint{point.step == Step::transfer ? "exchange" : "all_gather", kIssuedBytes});
  }

  void add(const BesidePoint& point) {
    using Part = ProfilePlanOptions::Part;
    for (std::int64_t i = 0; options_.part != Part::collective && i < options_.kernels; ++i)
      std::visit([this](const auto& one) { add(one); }, point.kernel);
    for (std::int64_t i = 0; options_.part != Part::kernel && i < options_.collectives; ++i)
      add(point.collective);
  }

 private:
  // Labels the kernels of attention alone: casts and the like around them are not measured.
  static void label(Plan& part) {
    for (Segment& segment : part.segments) {
      Step& step = std::get<Step>(segment);
      step.label = is_attention(step) ? kKernelLabel : "";
    }
  }

  // Copies every other run of kPacked elements to one place.
  void add_pack(const MemoryPoint& point) {
    const std::int64_t rows = moved_bytes(point) / moved_bytes_of_unit(point.kernel),
                       slots = slots_for(point.bytes, options_);
    const std::int64_t numel = rows * kPacked;
    const View from{buffer("apart", kType, 2 * numel * slots),
                    0,
                    {rows, kPacked},
                    {2 * kPacked, 1},
                    Advance{2 * numel, slots, 0}};
    kernel(Copy{from, dense_view(buffer("packed", kType, numel * slots), 0, {rows, kPacked},
                                 Advance{numel, slots, 0})});
  }

  // Reads two partial outputs with their statistics, and writes one.
  void add_merge(const MemoryPoint& point) {
    const std::int64_t rows = moved_bytes(point) / moved_bytes_of_unit(point.kernel),
                       slots = slots_for(point.bytes, options_);
    const Shape data{1, rows, 1, kMergeHead}, statistics{1, 1, rows};
    const auto view = [&](const char* name, DType dtype, const Shape& shape) {
      const std::int64_t numel = cp::numel(shape);
      return dense_view(buffer(name, dtype, numel * slots), 0, shape, Advance{numel, slots, 0});
    };
    kernel(AttentionMerge{view("in", kType, data), view("in_lse", DType::f32, statistics),
                          view("out", DType::f32, data), view("lse", DType::f32, statistics)});
  }

  // Returns the plan's buffer of this name, and makes it at the first call.
  BufferId buffer(const std::string& name, DType dtype, std::int64_t numel) {
    const auto [known, is_new] = buffers_.try_emplace(name, -1);
    if (is_new) known->second = b_.inout(name, dtype, numel);
    return known->second;
  }

  void kernel(Kernel work) { b_.add(b_.stream("compute"), std::move(work), std::string(kKernelLabel)); }
  void collective(Collective work) {
    b_.add(b_.stream("comm"), std::move(work), std::string(kCollectiveLabel));
  }

  PlanBuilder& b_;
  const Rank self_;
  const int world_, machines_;
  const ProfilePlanOptions& options_;
  std::map<std::string, BufferId> buffers_;
  int attentions_ = 0;
};

bool is_of_all_ranks(const ProfilePoint& point) {
  if (const auto* issue = std::get_if<IssuePoint>(&point)) return issue->step != IssuePoint::Step::kernel;
  return std::holds_alternative<CollectivePoint>(point) || std::holds_alternative<BesidePoint>(point);
}

bool has_part(const ProfilePoint& point, Rank self, const ProfileWorld& world) {
  if (is_of_all_ranks(point)) return true;
  const auto* pairs = std::get_if<PairsPoint>(&point);
  if (pairs == nullptr) return self == 0 || !world.shared_gpu;
  const int each = world.ranks / world.machines;
  return self / each < 2 && self % each < pairs->pairs;
}

std::string text(const AttentionPoint& point) {
  return str("attention ", point.backward ? "backward" : "forward", " ", name(point.mask), " ", point.seq_len,
             " x ", point.q_heads, " heads (", point.kv_heads, " kv) x ", point.head_dim);
}
std::string text(const MemoryPoint& point) { return str(name(point.kernel), " ", point.bytes, " B"); }
std::string text(const ProductPoint& point) {
  return str("product ", point.m, " x ", point.n, " x ", point.k);
}
std::string text(const CollectivePoint& point) { return str(point.operation, " ", point.bytes, " B"); }
std::string text(const PairsPoint& point) { return str(point.pairs, " pairs ", point.bytes, " B"); }
std::string text(const BesidePoint& point) {
  return str(text(point.collective), " beside ",
             std::visit([](const auto& kernel) { return text(kernel); }, point.kernel),
             point.channels == 0 ? "" : str(", ", point.channels, " channels"));
}
std::string text(const IssuePoint& point) { return str("issue of a ", name(point.step)); }

}  // namespace

std::string_view name(AttentionPoint::Mask mask) {
  constexpr std::string_view kNames[] = {"full", "causal", "window"};
  return kNames[static_cast<std::size_t>(mask)];
}

std::string_view name(MemoryPoint::Kernel kernel) {
  constexpr std::string_view kNames[] = {"copy", "pack", "cast", "merge"};
  return kNames[static_cast<std::size_t>(kernel)];
}

std::string_view name(IssuePoint::Step step) {
  constexpr std::string_view kNames[] = {"kernel", "collective", "transfer"};
  return kNames[static_cast<std::size_t>(step)];
}

std::string name(const ProfilePoint& point) {
  return std::visit([](const auto& one) { return text(one); }, point);
}

ProfileGrid profile_grid(ProfileSize size, const ProfileWorld& world) {
  ProfileGrid grid;
  const Sizes sizes = sizes_of(size);
  add_kernels(sizes, grid.points);
  if (world.ranks > 1) add_collectives(sizes, world, grid.points);
  return grid;
}

Plan profile_plan(const ProfilePoint& point, Rank self, const ProfileWorld& world, const Target& target,
                  const ProfilePlanOptions& options) {
  PlanBuilder builder(self, target);
  builder.stream("compute");
  const bool beside = std::holds_alternative<BesidePoint>(point);
  const bool alone = std::holds_alternative<PairsPoint>(point) || (is_of_all_ranks(point) && !beside);
  const StreamId first = builder.stream(alone ? "comm" : "compute");
  if (has_part(point, self, world)) {
    const std::int64_t numel = std::max<std::int64_t>(1, options.head_bytes / 4);
    const BufferId head = builder.inout("head", DType::f32, numel);
    builder.begin_repeat(options.head_repeats);
    builder.add(first, Fill{flat_view(head, 0, numel), 0}, std::string(kHeadLabel));
    builder.end_repeat();
    PointPlan steps(builder, self, world, options);
    builder.begin_repeat(options.iterations);
    std::visit([&steps](const auto& one) { steps.add(one); }, point);
    builder.end_repeat();
  }
  return std::move(builder).build(Hasher().add(std::string_view("profile")).add(name(point)).digest());
}

double flops(const AttentionPoint& point) {
  const Plan plan = plan_of(point, 0, host_target());
  double flops = 0;
  for (const StepRef& ref : steps_of(plan)) {
    if (is_attention(*ref.step)) flops += sim::work_of(std::get<Kernel>(ref.step->work), plan).flops;
  }
  return flops;
}

double flops(const ProductPoint& point) {
  return sim::product_work(static_cast<double>(point.m), static_cast<double>(point.n),
                           static_cast<double>(point.k))
      .flops;
}

std::int64_t moved_bytes(const MemoryPoint& point) {
  const std::int64_t unit = moved_bytes_of_unit(point.kernel);
  return std::max<std::int64_t>(1, point.bytes / unit) * unit;
}

}  // namespace cp::cli
