#include "shared/mesh/parallel_dims.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

constexpr int kInfer = -1;

// Saturates, so that absurd degrees are too large for the world instead of an overflow.
std::int64_t product(std::initializer_list<int> degrees) {
  std::int64_t result = 1;
  for (const int degree : degrees) {
    if (result > std::numeric_limits<std::int64_t>::max() / degree) {
      return std::numeric_limits<std::int64_t>::max();
    }
    result *= degree;
  }
  return result;
}

// "{1, 2, 4, 8}"
std::string divisors_text(std::int64_t value) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    low.push_back(d);
    if (d != value / d) high.push_back(value / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return str("{", join(low, ", "), "}");
}

// "8 or 16": the multiples of `divisor` on both sides of `value`, which is not one.
std::string nearest_multiples(std::int64_t value, std::int64_t divisor) {
  const std::int64_t below = value / divisor * divisor;
  return below > 0 ? str(below, " or ", below + divisor) : str(divisor);
}

}  // namespace

ParallelDims::ParallelDims(const ParallelConfig& config, int world_size)
    : dp_replicate_(config.dp_replicate),
      dp_shard_(config.dp_shard.value_or(config.dp.value_or(kInfer))),
      cp_(config.cp),
      tp_(config.tp),
      pp_(config.pp),
      ep_(config.ep),
      etp_(config.etp.value_or(config.tp)),
      ulysses_degree_(config.cp > 1 ? config.ulysses_degree.value_or(config.cp) : 1),
      world_size_(world_size),
      expert_rule_(config.expert_rule) {
  const std::array<std::pair<const char*, int>, 8> degrees = {
      {{"world_size", world_size_},
       {"dp_replicate", dp_replicate_},
       {"cp", cp_},
       {"tp", tp_},
       {"pp", pp_},
       {"ep", ep_},
       {"etp", etp_},
       {"ulysses_degree", config.ulysses_degree.value_or(1)}}};
  for (const auto& [name, degree] : degrees) {
    if (degree < 1) fail(str(name, "=", degree, " must be at least 1"));
  }
  if (dp_shard_ < 1 && dp_shard_ != kInfer) {
    fail(str("dp_shard=", dp_shard_, " must be at least 1, or -1 to fill the world"));
  }
  if (dp_shard_ == kInfer) infer_dp_shard();
  check_world();
  check_experts();
  check_ulysses();
}

void ParallelDims::infer_dp_shard() {
  const std::int64_t others = product({dp_replicate_, cp_, tp_, pp_, ep_axis_size()});
  if (world_size_ % others != 0) {
    fail(str("dp_shard cannot be inferred: world_size=", world_size_,
             " is not divisible by the product of the other degrees, ", others, "; use a world_size of ",
             nearest_multiples(world_size_, others), ", or degrees whose product divides ", world_size_));
  }
  dp_shard_ = static_cast<int>(world_size_ / others);
}

void ParallelDims::check_world() const {
  const std::int64_t total = product({dp_replicate_, dp_shard_, cp_, tp_, pp_, ep_axis_size()});
  if (total == world_size_) return;
  const std::int64_t others = product({dp_replicate_, cp_, tp_, pp_, ep_axis_size()});
  const std::string remedy = world_size_ % others == 0
                                 ? str("use dp_shard=", world_size_ / others, ", or -1 to infer it")
                                 : str("use a world_size of ", total, ", or other degrees");
  fail(str("dp_replicate*dp_shard*cp*tp*pp", expert_rule_ == ExpertRule::peer ? "*ep" : "", "=", total,
           " is not world_size=", world_size_, "; ", remedy));
}

void ParallelDims::check_experts() const {
  if (!ep_enabled()) return;
  if (etp_ != tp_ && etp_ != 1) {
    fail(str("etp=", etp_, " is neither tp=", tp_,
             " nor 1: the experts' tensor parallel groups must be the dense ones, or single ranks"));
  }
  if (expert_rule_ == ExpertRule::peer) return;
  const std::int64_t pool = product({dp_shard_, cp_, tp_});
  if (pool % product({ep_, etp_}) == 0) return;
  fail(str("ep*etp=", product({ep_, etp_}), " does not divide dp_shard*cp*tp=", pool, "; use ep in ",
           divisors_text(pool / etp_), etp_ > 1 && pool % ep_ == 0 ? ", or etp=1" : ""));
}

void ParallelDims::check_ulysses() const {
  if (!cp_enabled() || cp_ % ulysses_degree_ == 0) return;
  fail(str("cp=", cp_, " is not divisible by ulysses_degree=", ulysses_degree_, "; use ulysses_degree in ",
           divisors_text(cp_)));
}

int ParallelDims::ep_axis_size() const { return expert_rule_ == ExpertRule::peer ? ep_ : 1; }

int ParallelDims::non_dp_size() const { return tp_ * cp_ * pp_ * ep_axis_size(); }

int ParallelDims::efsdp_size() const {
  const int pool = dp_shard_ * cp_ * tp_;
  if (!ep_enabled()) return pool;
  return pool / (expert_rule_ == ExpertRule::peer ? etp_ : ep_ * etp_);
}

void ParallelDims::validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len,
                                          bool strict) const {
  const auto require_divisible = [this](const char* field, std::optional<int> value, const char* name,
                                        int degree) {
    if (!value || *value % degree == 0) return;
    fail(str(field, "=", *value, " is not divisible by ", name, "=", degree, "; use ", name, " in ",
             divisors_text(*value)));
  };
  require_divisible("num_attention_heads", model.num_attention_heads, "tp", tp_);
  require_divisible("num_key_value_heads", model.num_key_value_heads, "tp", tp_);
  require_divisible("num_experts", model.num_experts, "ep", ep_);

  const std::int64_t divisor = product({cp_, tp_});
  if (!strict || !seq_len || *seq_len % divisor == 0) return;
  fail(str("seq_len=", *seq_len, " is not divisible by cp*tp=", divisor, "; use a seq_len of ",
           nearest_multiples(*seq_len, divisor), ", or allow uneven shards (strict=false)"));
}

void ParallelDims::require_runnable() const {
  if (pp_enabled()) fail(str("pp=", pp_, " can be planned but not executed; use pp=1 to run"));
}

Mesh ParallelDims::build_mesh() const {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis :
       {MeshAxis{"dp_replicate", dp_replicate_}, MeshAxis{"dp_shard", dp_shard_},
        MeshAxis{"ep", ep_axis_size()}, MeshAxis{"cp", cp_}, MeshAxis{"tp", tp_}, MeshAxis{"pp", pp_}}) {
    if (axis.size > 1) axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({"dp_shard", world_size_});

  Mesh mesh(axes);
  const auto is_missing = [&axes](const std::string& name) {
    return std::none_of(axes.begin(), axes.end(), [&](const MeshAxis& axis) { return axis.name == name; });
  };
  const auto alias = [&](const std::string& name, std::vector<std::string> behind) {
    std::erase_if(behind, is_missing);
    if (!behind.empty()) mesh = mesh.flatten(behind, name);
  };
  alias("fsdp", {"dp_shard"});
  alias("dp", {"dp_replicate", "dp_shard"});
  alias("loss", {"dp_replicate", "dp_shard", "cp"});
  return mesh;
}

std::string ParallelDims::summary() const {
  return str(degrees_text(), " | dp=", dp_size(), " world=", world_size_);
}

std::string ParallelDims::degrees_text() const {
  return str("dp_replicate=", dp_replicate_, " dp_shard=", dp_shard_, " cp=", cp_, " tp=", tp_, " pp=", pp_,
             " ep=", ep_, " etp=", etp_);
}

void ParallelDims::fail(const std::string& reason) const {
  throw InvalidInput(str(reason, " (", degrees_text(), " world_size=", world_size_, ")"));
}

}  // namespace cp
