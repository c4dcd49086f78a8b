#include "tests/identity/scenario_generator.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "sim/scenario/rank_job.h"
#include "tests/support/layout_generators.h"
#include "traces/types_proto.h"

namespace cp::testing {
namespace {

// std::uniform_int_distribution differs between libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(int n) { return in(1, n) == 1; }
  template <class T>
  T any(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(in(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

// Whether the scenario can run at all, on exactly so many ranks.
bool is_possible(const proto::Scenario& scenario, int ranks) {
  try {
    if (sim::world_size_of(scenario) != ranks) return false;
    sim::make_rank_job(scenario, 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

template <class Draw>
proto::Scenario first_possible(std::uint64_t seed, int ranks, Draw draw) {
  constexpr std::uint64_t kTries = 10'000;
  for (std::uint64_t i = 0; i < kTries; ++i) {
    proto::Scenario scenario = draw(seed * kTries + i);
    if (is_possible(scenario, ranks)) return scenario;
  }
  throw InvalidInput(str("no scenario of seed ", seed, " for ", ranks, " ranks"));
}

// Every second one is a backward. Drawn for all tries of a scenario, so that they go on until one has a group
// to scale by.
void draw_gradient(std::uint64_t seed, proto::Redistribute& job) {
  Random random(seed);
  if (!random.one_in(2)) return;
  job.set_gradient(random.one_in(3) ? proto::Redistribute::adjoint : proto::Redistribute::replicated);
  job.set_gradient_scale(
      random.any<proto::Redistribute::GradientScale>({proto::Redistribute::none, proto::Redistribute::up,
                                                      proto::Redistribute::down, proto::Redistribute::down}));
  // to_partial is a step of its own, with both shards alive.
  if (job.gradient() == proto::Redistribute::adjoint) job.set_max_memory_factor(2);
}

proto::Scenario draw_redistribute(std::uint64_t seed, int ranks, std::uint64_t gradient_seed) {
  const RedistributeCase drawn = case_of_seed(seed, {.tight = false, .max_ranks = ranks});
  proto::Scenario scenario;
  proto::Redistribute& job = *scenario.mutable_redistribute();
  job.set_mesh(drawn.source.mesh.to_string());
  if (drawn.target.mesh != drawn.source.mesh) job.set_to_mesh(drawn.target.mesh.to_string());
  job.set_shape(join(drawn.source.shape, "x"));
  job.set_dtype(to_proto(drawn.source.dtype));
  job.set_from(placements_to_string(drawn.source));
  job.set_to(placements_to_string(drawn.target));
  if (drawn.options.objective == Objective::bytes) job.set_objective(proto::Redistribute::bytes);
  job.set_max_memory_factor(drawn.options.max_memory_factor);
  if (drawn.options.travel_dtype) job.set_travel_dtype(to_proto(*drawn.options.travel_dtype));
  job.mutable_cost()->set_step_latency_us(drawn.options.cost.step_latency_us);
  job.mutable_cost()->set_peer_latency_us(drawn.options.cost.peer_latency_us);
  job.mutable_cost()->set_local_latency_us(drawn.options.cost.local_latency_us);
  job.set_seed(seed);
  draw_gradient(gradient_seed, job);
  return scenario;
}

std::string draw_mesh(Random& random, int ranks) {
  std::string mesh = str("cp=", ranks);
  if (!random.one_in(3)) return mesh;
  std::vector<Rank> order;
  for (Rank rank = 0; rank < ranks; ++rank)
    order.insert(order.begin() + random.in(0, rank), rank);  // any order of ranks along the axis
  return str(mesh, "@", join(order, "/"));
}

void draw_strategy(Random& random, int ranks, proto::Attention& job) {
  job.set_strategy(random.any(strategy_names()));
  std::vector<std::int32_t> divisors;
  for (std::int32_t n = 1; n <= ranks; ++n) {
    if (ranks % n == 0) divisors.push_back(n);
  }
  if (job.strategy().starts_with("ulysses_") && random.one_in(2))
    job.set_ulysses_degree(random.any(divisors));
  if (job.strategy() == "double_ring" && random.one_in(2)) job.set_inner_ring(random.any(divisors));
  job.set_balance(random.any<std::string>({"contiguous", "head_tail", "striped", "striped:3", "cost:4",
                                           "head_tail_exchange", "per_document:head_tail"}));
  if (random.one_in(3)) job.set_axis_order("ring_inner");
  if (random.one_in(4)) job.set_rotation("all_gather");
  if (random.one_in(4)) job.set_dkv_dtype("input");
  if (random.one_in(4)) job.set_merge_dtype("input");
  job.set_send_empty(random.one_in(4));
}

std::string draw_documents(Random& random, std::int64_t kv_len) {
  std::vector<std::int64_t> ends = {0};
  for (std::int64_t documents = random.in(1, 4), i = 0; i < documents; ++i)
    ends.push_back(random.in(ends.back(), kv_len));
  if (random.one_in(2)) ends.back() = kv_len;
  return join(ends, "/");
}

void draw_mask(Random& random, proto::Attention& job) {
  const std::int64_t kv_len = job.has_kv_len() ? job.kv_len() : job.seq_len();
  job.set_causal(random.one_in(2));
  if (random.one_in(3)) job.set_window(random.in(1, kv_len));
  if (random.one_in(3)) {
    job.set_documents(draw_documents(random, kv_len));
  }
  if (random.one_in(6)) job.set_query_offset(random.in(-3, 3));
}

void draw_options(Random& random, proto::Attention& job) {
  if (random.one_in(3)) job.set_lse("computed");
  if (job.backward() && random.one_in(3))
    job.set_gradients(random.any<std::string>({"dq", "dk", "dv", "dk,dv", "dq,dv", "dq,dk"}));
  if (job.batch() == 2 && random.one_in(2)) {  // documents of each entry
    const std::int64_t kv_len = job.has_kv_len() ? job.kv_len() : job.seq_len();
    const std::string first = draw_documents(random, kv_len), second = draw_documents(random, kv_len);
    job.set_documents(first + ";" + second);
  }
  // Last, so that what a seed drew before it stays.
  if (random.one_in(3)) job.set_merges("beside");
  if (random.one_in(4)) job.set_chunk(random.in(1, std::max<std::int64_t>(1, job.seq_len())));
  if (random.one_in(3)) job.set_softcap(2);
  if (random.one_in(4)) job.set_sinks(true);
  if (random.one_in(4)) job.set_dropout(0.25);
  if (random.one_in(2)) return;
  job.set_latent(random.in(1, 12));
  if (job.head_dim() > 1) job.set_rope_dim(random.in(0, job.head_dim() - 1));
  if (!job.gradients().empty() && job.gradients() != "dq") job.set_gradients("dk,dv");
  if (random.one_in(4)) job.set_keys("heads");
  if (job.keys().empty() && job.strategy() != "pass_q" && !random.one_in(3)) job.set_keys("latent");
}

proto::Scenario draw_attention(std::uint64_t seed, int ranks) {
  Random random(seed);
  proto::Scenario scenario;
  proto::Attention& job = *scenario.mutable_run();
  job.set_mesh(draw_mesh(random, ranks));
  draw_strategy(random, ranks, job);
  job.set_seq_len(random.in(1, 70));
  if (random.one_in(4)) job.set_kv_len(random.in(1, 70));
  job.set_batch(random.in(1, 2));
  job.set_kv_heads(random.in(1, 3));
  job.set_q_heads(job.kv_heads() * random.in(1, 4));
  job.set_head_dim(random.in(1, 8));
  if (random.one_in(3)) job.set_v_head_dim(random.in(1, 8));
  job.set_dtype(random.any<proto::DType>({proto::f32, proto::f32, proto::bf16, proto::f16}));
  job.set_format(random.any<std::string>({"", "", "bshd", "bnsd", "sbhd"}));
  draw_mask(random, job);
  job.set_backward(!random.one_in(4));
  job.set_seed(seed);
  draw_options(random, job);
  return scenario;
}

proto::Scenario draw_recurrence(std::uint64_t seed, int ranks) {
  Random random(seed);
  proto::Scenario scenario;
  proto::Recurrence& job = *scenario.mutable_recurrence();
  job.set_rule(random.any<std::string>({"delta", "delta", "decay"}));
  job.set_mesh(draw_mesh(random, ranks));
  job.set_strategy(random.any<std::string>({"sequential", "recursive_doubling", "all_gather", "heads"}));
  job.set_balance(random.any<std::string>(
      {"contiguous", "head_tail", "striped:3", "per_document:contiguous", "per_document:head_tail"}));
  job.set_seq_len(random.in(1, 70));
  if (random.one_in(3)) job.set_batch(2);
  job.set_key_heads(job.strategy() == "heads" ? ranks * random.in(1, 2) : random.in(1, 3));
  if (random.one_in(2)) job.set_value_heads(2 * job.key_heads());
  job.set_head_dim(random.in(1, 8));
  if (random.one_in(2)) job.set_v_head_dim(random.in(1, 8));
  job.set_dtype(random.any<proto::DType>({proto::f32, proto::f32, proto::bf16, proto::f16}));
  if (random.one_in(3)) {
    std::vector<std::int64_t> ends = {0, job.seq_len()};
    for (std::int64_t left = random.in(1, 4); left > 0; --left) ends.push_back(random.in(0, job.seq_len()));
    std::sort(ends.begin(), ends.end());
    job.set_documents(join(ends, "/"));
  }
  job.set_backward(!random.one_in(4));
  job.set_seed(seed);
  return scenario;
}

}  // namespace

proto::Scenario redistribute_scenario(std::uint64_t seed, int ranks) {
  return first_possible(seed, ranks, [&](std::uint64_t one) {
    return draw_redistribute(one, ranks, seed * 16 + static_cast<std::uint64_t>(ranks));
  });
}

proto::Scenario attention_scenario(std::uint64_t seed, int ranks) {
  return first_possible(seed, ranks, [&](std::uint64_t one) { return draw_attention(one, ranks); });
}

proto::Scenario recurrence_scenario(std::uint64_t seed, int ranks) {
  return first_possible(seed, ranks, [&](std::uint64_t one) { return draw_recurrence(one, ranks); });
}

}  // namespace cp::testing
