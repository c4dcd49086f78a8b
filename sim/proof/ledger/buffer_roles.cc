#include "sim/proof/ledger/buffer_roles.h"

#include <algorithm>
#include <array>

#include "shared/base/index.h"

namespace cp::sim {
namespace {

enum class Place : std::uint8_t { home, compute, as_asked };

struct Known {
  std::string_view name;
  Tensor tensor;
  Place place;
  bool forward, backward;
};
constexpr std::array<Known, 17> kKnown = {{
    {"q", Tensor::q, Place::home, true, true},
    {"k", Tensor::k, Place::home, true, true},
    {"v", Tensor::v, Place::home, true, true},
    {"out", Tensor::out, Place::home, true, true},
    {"lse", Tensor::lse, Place::as_asked, true, true},
    {"saved_lse", Tensor::lse, Place::compute, true, true},
    {"saved_q", Tensor::q, Place::compute, true, true},
    {"saved_k", Tensor::k, Place::compute, true, true},
    {"saved_v", Tensor::v, Place::compute, true, true},
    {"saved_out", Tensor::out, Place::compute, true, true},
    {"dout", Tensor::dout, Place::home, false, true},
    {"dq", Tensor::dq, Place::home, false, true},
    {"dk", Tensor::dk, Place::home, false, true},
    {"dv", Tensor::dv, Place::home, false, true},
    {"latent", Tensor::latent, Place::home, true, true},
    {"saved_latent", Tensor::latent, Place::compute, true, true},
    {"dlatent", Tensor::dlatent, Place::home, false, true},
}};

// The kv heads of the part that begin a piece are those with the numbers floor(i * heads / pieces), or if the
// heads do not divide, as the longer pieces come first; and each takes along its queries.
std::vector<std::int64_t> piece_begins(const AttentionProblem& problem, const TensorPart& part, bool query,
                                       const AttentionRequest& request) {
  const std::int64_t per_kv = query ? problem.heads_per_kv() : 1, pieces = request.strategy.pieces;
  const std::int64_t first = part.head_begin / per_kv, heads = ceil_div(part.head_end, per_kv) - first;
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i <= pieces; ++i) {
    const std::int64_t kv = first + i * (heads / pieces) + std::min(i, heads % pieces);
    begins.push_back(std::clamp(kv * per_kv, part.head_begin, part.head_end) - part.head_begin);
  }
  return begins;
}

// The caller gives latent rows, or keys and values, and gets gradients of what was given.
bool is_unknown_to(const AttentionProblem& problem, std::string_view name, Tensor tensor) {
  if (!problem.has_latent()) return tensor == Tensor::latent || tensor == Tensor::dlatent;
  return name == "k" || name == "v" || name == "dk" || name == "dv";
}

}  // namespace

std::optional<BufferRole> buffer_role(const AttentionRequest& request, const AttentionSharding& sharding,
                                      AttentionPass pass, int index, std::string_view name) {
  const AttentionProblem& problem = request.problem;
  // One number for each head, or one alone, on every rank.
  const auto numbers = [](Tensor tensor, std::int64_t heads) {
    return BufferRole{tensor, {index_range(0, 1), 0, heads}, {0, 0, 1, 1}, 1, {}, false};
  };
  if (name == "seed" && problem.drops()) return numbers(Tensor::seed, 1);
  if (name == "sinks" && problem.sinks) return numbers(Tensor::sinks, problem.q_heads);
  if (name == "dsinks" && problem.sinks && pass == AttentionPass::backward)
    return numbers(Tensor::dsinks, problem.q_heads);
  const std::int64_t rank = problem.latent.rank, up = problem.up_rows();
  const auto weight = [&](Tensor tensor) {
    return BufferRole{tensor, {index_range(0, up), 0, problem.kv_heads}, {0, rank, up * rank, 1}, rank, {},
                      false};
  };
  if (name == "kv_up" && problem.has_latent()) return weight(Tensor::kv_up);
  if (name == "dkv_up" && problem.has_latent() && pass == AttentionPass::backward &&
      request.options.gradients.dk)
    return weight(Tensor::dkv_up);
  for (const Known& known : kKnown) {
    if (known.name != name || !(pass == AttentionPass::forward ? known.forward : known.backward)) continue;
    if (is_unknown_to(problem, name, known.tensor)) return std::nullopt;
    const Gradients& wanted = request.options.gradients;
    const bool unwanted =
        (known.tensor == Tensor::dq && !wanted.dq) || (known.tensor == Tensor::dlatent && !wanted.dk) ||
        (known.tensor == Tensor::dk && !wanted.dk) || (known.tensor == Tensor::dv && !wanted.dv);
    if (unwanted) return std::nullopt;
    BufferRole role;
    role.tensor = known.tensor;
    const bool query = is_query(known.tensor), home_lse = request.options.lse == LsePlace::home;
    if (name == "saved_lse" && !home_lse) return std::nullopt;
    const bool home = known.place == Place::home || (known.place == Place::as_asked && home_lse);
    role.part = query ? (home ? sharding.home_q(index) : sharding.compute_q(index))
                      : (home ? sharding.home_kv(index) : sharding.compute_kv(index));
    if (known.tensor == Tensor::latent || known.tensor == Tensor::dlatent)
      role.part.head_begin = 0, role.part.head_end = 1;
    const std::int64_t rows = role.part.num_rows(), heads = role.part.num_heads(), batch = problem.batch;
    role.dim = TagSpace(problem).dim(known.tensor);
    if (known.tensor == Tensor::lse || (home && problem.format == TensorFormat::bnsd)) {
      role.strides = {heads * rows * role.dim, role.dim, rows * role.dim, 1};
    } else if (home && problem.format == TensorFormat::bshd) {
      role.strides = {rows * heads * role.dim, heads * role.dim, role.dim, 1};
    } else {  // sbhd at home; any where a rank computes
      role.strides = {heads * role.dim, batch * heads * role.dim, role.dim, 1};
      if (!home && request.strategy.pieces > 1)
        role.pieces = piece_begins(problem, role.part, query, request);
    }
    return role;
  }
  return std::nullopt;
}

std::vector<std::string_view> asked_outputs(const AttentionRequest& request, AttentionPass pass) {
  if (pass == AttentionPass::forward) return {"out", "lse"};
  std::vector<std::string_view> names;
  const Gradients& wanted = request.options.gradients;
  if (wanted.dq) names.emplace_back("dq");
  if (request.problem.has_latent()) {
    if (wanted.dk) names.insert(names.end(), {"dlatent", "dkv_up"});
  } else {
    if (wanted.dk) names.emplace_back("dk");
    if (wanted.dv) names.emplace_back("dv");
  }
  if (request.problem.sinks) names.emplace_back("dsinks");
  return names;
}

}  // namespace cp::sim
