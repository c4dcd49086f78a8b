#include "shared/mesh/parallel_dims.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// What a user writes for dp_shard to have it inferred: the value that HyperParallel and torchtitan use.
constexpr int kInfer = -1;

// In the order of `members` in read_degree().
constexpr std::array<std::string_view, 8> kDegreeKeys = {"tp", "cp", "dp_shard", "dp_replicate",
                                                         "dp", "pp", "ep",       "etp"};

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

std::string degrees_text(const ParallelDegrees& degrees, int etp) {
  return str("dp_replicate=", degrees.dp_replicate, " dp_shard=", degrees.dp_shard, " cp=", degrees.cp,
             " tp=", degrees.tp, " pp=", degrees.pp, " ep=", degrees.ep, " etp=", etp);
}

// What is known while dp_shard is inferred.
struct Inference {
  ParallelDegrees degrees;
  int etp = 1;
  ExpertRule rule = ExpertRule::peer;
  std::optional<int> world;

  [[noreturn]] void fail(const std::string& reason) const {
    throw InvalidInput(str(reason, " (", degrees_text(degrees, etp),
                           world ? str(" world_size=", *world) : std::string(), ")"));
  }
  // All degrees that multiply the world, but for dp_shard.
  std::int64_t others() const {
    return product({degrees.dp_replicate, degrees.cp, degrees.tp, degrees.pp,
                    rule == ExpertRule::peer ? degrees.ep : 1});
  }
  std::int64_t total() const {
    return product({degrees.dp_replicate, degrees.cp, degrees.tp, degrees.pp,
                    rule == ExpertRule::peer ? degrees.ep : 1, degrees.dp_shard});
  }
};

void check_not_below_one(const Inference& known, const ParallelConfig& config) {
  const ParallelDegrees& degrees = known.degrees;
  const std::array<std::pair<const char*, int>, 8> all = {
      {{"world_size", known.world.value_or(1)},
       {"dp_replicate", degrees.dp_replicate},
       {"cp", degrees.cp},
       {"tp", degrees.tp},
       {"pp", degrees.pp},
       {"ep", degrees.ep},
       {"etp", known.etp},
       {"ulysses_degree", config.ulysses_degree.value_or(1)}}};
  for (const auto& [name, degree] : all) {
    if (degree < 1) known.fail(str(name, "=", degree, " must be at least 1"));
  }
  if (degrees.dp_shard < 1 && degrees.dp_shard != kInfer) {
    known.fail(str("dp_shard=", degrees.dp_shard, " must be at least 1, or -1 to fill the world"));
  }
}

void infer_dp_shard(Inference& known) {
  const std::int64_t others = known.others();
  if (*known.world % others != 0) {
    known.fail(str("dp_shard cannot be inferred: world_size=", *known.world,
                   " is not divisible by the product of the other degrees, ", others,
                   "; use a world_size of ", nearest_multiples(*known.world, others),
                   ", or degrees whose product divides ", *known.world));
  }
  known.degrees.dp_shard = static_cast<int>(*known.world / others);
}

void check_world(const Inference& known) {
  const std::int64_t total = known.total(), others = known.others(), world = *known.world;
  if (total == world) return;
  const std::string remedy = world % others == 0 ? str("use dp_shard=", world / others, ", or -1 to infer it")
                                                 : str("use a world_size of ", total, ", or other degrees");
  known.fail(str("dp_replicate*dp_shard*cp*tp*pp", known.rule == ExpertRule::peer ? "*ep" : "", "=", total,
                 " is not world_size=", world, "; ", remedy));
}

}  // namespace

// ---- texts ----

std::string_view name(ExpertRule rule) { return rule == ExpertRule::peer ? "peer" : "nested"; }

ExpertRule parse_expert_rule(std::string_view text) {
  for (const ExpertRule rule : {ExpertRule::peer, ExpertRule::nested}) {
    if (text == name(rule)) return rule;
  }
  throw InvalidInput(str("expert rule '", text,
                         "' is unknown; use peer (ep is an axis of its own and "
                         "multiplies the world) or nested (ep lies inside dp_shard*cp*tp)"));
}

std::span<const std::string_view> degree_keys() { return kDegreeKeys; }

bool read_degree(ParallelConfig& config, std::string_view key, std::string_view value) {
  const std::array<std::optional<int>*, kDegreeKeys.size()> members = {
      &config.tp, &config.cp, &config.dp_shard, &config.dp_replicate,
      &config.dp, &config.pp, &config.ep,       &config.etp};
  const auto* known = std::find(kDegreeKeys.begin(), kDegreeKeys.end(), key);
  if (known == kDegreeKeys.end()) return false;
  const std::int64_t degree = parse_int(value, key);
  const bool may_be_inferred = key == "dp_shard" || key == "dp";
  if ((degree < 1 || degree > Mesh::kMaxRanks) && !(may_be_inferred && degree == kInfer)) {
    throw InvalidInput(str(key, "=", degree, " is out of range; use 1 to ", Mesh::kMaxRanks,
                           may_be_inferred ? ", or -1 for what is left of the ranks" : ""));
  }
  *members[static_cast<std::size_t>(known - kDegreeKeys.begin())] = static_cast<int>(degree);
  return true;
}

// ---- rules ----

std::optional<int> given_dp_shard(const ParallelConfig& config) {
  if (config.dp && config.dp_shard && *config.dp != *config.dp_shard) {
    throw InvalidInput(str("dp=", *config.dp, " and dp_shard=", *config.dp_shard,
                           " are two names of one degree and differ; give one of them (replicas that are not "
                           "sharded are dp_replicate)"));
  }
  return config.dp_shard ? config.dp_shard : config.dp;
}

ParallelDegrees infer_degrees(const ParallelConfig& config, std::optional<int> world_size) {
  Inference known{
      {config.dp_replicate.value_or(1), given_dp_shard(config).value_or(kInfer), config.cp.value_or(1),
       config.tp.value_or(1), config.pp.value_or(1), config.ep.value_or(1)},
      config.etp.value_or(config.tp.value_or(1)),
      config.expert_rule,
      world_size};
  check_not_below_one(known, config);
  if (!known.world) {
    if (known.degrees.dp_shard == kInfer) known.degrees.dp_shard = 1;
    const std::int64_t ranks = known.total();
    if (ranks <= Mesh::kMaxRanks) return known.degrees;
    known.fail(str("the product of the degrees is more than ", Mesh::kMaxRanks, " ranks; use smaller ones"));
  }
  if (known.degrees.dp_shard == kInfer) infer_dp_shard(known);
  check_world(known);
  return known.degrees;
}

std::optional<DegreeRefusal> refuse_expert_degrees(const ParallelDegrees& degrees, int etp, ExpertRule rule) {
  if (degrees.ep == 1) return std::nullopt;
  if (etp != degrees.tp && etp != 1) {
    return DegreeRefusal{
        "etp is neither tp nor 1",
        str("etp=", etp, " is neither tp=", degrees.tp,
            " nor 1: the experts' tensor parallel groups must be the dense ones, or single ranks"),
        str("use etp=", degrees.tp)};
  }
  if (rule == ExpertRule::peer) return std::nullopt;
  const std::int64_t pool = product({degrees.dp_shard, degrees.cp, degrees.tp});
  if (pool % product({degrees.ep, etp}) == 0) return std::nullopt;
  return DegreeRefusal{"ep does not divide",
                       str("ep*etp=", product({degrees.ep, etp}), " does not divide dp_shard*cp*tp=", pool),
                       str("use ep=", nearest_divisor(std::max<std::int64_t>(1, pool / etp), degrees.ep),
                           etp > 1 && pool % degrees.ep == 0 ? ", or etp=1" : "")};
}

std::optional<DegreeRefusal> refuse_model(const ParallelDegrees& degrees, const ModelDims& model,
                                          std::optional<std::int64_t> seq_len, bool strict) {
  const auto indivisible = [](const char* kind, const char* field, std::int64_t value, const char* name,
                              int degree) {
    return DegreeRefusal{kind, str(field, "=", value, " is not divisible by ", name, "=", degree),
                         str("use ", name, "=", nearest_divisor(value, degree))};
  };
  const int tp = degrees.tp, ep = degrees.ep;
  if (model.num_attention_heads.value_or(tp) % tp != 0) {
    return indivisible("tp does not divide the heads", "num_attention_heads", *model.num_attention_heads,
                       "tp", tp);
  }
  const std::int64_t kv_heads = model.num_key_value_heads.value_or(tp);
  if (kv_heads % tp != 0) {
    if (strict)
      return indivisible("tp does not divide the kv heads", "num_key_value_heads", kv_heads, "tp", tp);
    if (tp % kv_heads != 0) {
      return DegreeRefusal{"tp does not divide the kv heads",
                           str("num_key_value_heads=", kv_heads, " and tp=", tp, " do not divide each other"),
                           str("use tp=", nearest_divisor(kv_heads, tp))};
    }
  }
  if (model.num_experts.value_or(ep) % ep != 0)
    return indivisible("ep does not divide", "num_experts", *model.num_experts, "ep", ep);

  const std::int64_t divisor = product({degrees.cp, tp});
  if (!strict || !seq_len || *seq_len % divisor == 0) return std::nullopt;
  return DegreeRefusal{"cp * tp does not divide the sequence",
                       str("seq_len=", *seq_len, " is not divisible by cp*tp=", divisor),
                       str("use a seq_len of ", nearest_multiples(*seq_len, divisor),
                           ", or allow uneven shards (strict=false)")};
}

std::int64_t nearest_divisor(std::int64_t number, std::int64_t value) {
  for (std::int64_t degree = std::min(value, number); degree > 1; --degree) {
    if (number % degree == 0) return degree;
  }
  return 1;
}

Mesh with_parallel_aliases(const Mesh& plain) {
  Mesh mesh = plain;
  const auto is_missing = [&](const std::string& name) {
    return std::none_of(mesh.axes().begin(), mesh.axes().end(),
                        [&](const MeshAxis& axis) { return axis.name == name; });
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

// ---- a run ----

ParallelDims::ParallelDims(const ParallelConfig& config, int world_size)
    : degrees_(infer_degrees(config, world_size)),
      etp_(config.etp.value_or(degrees_.tp)),
      ulysses_degree_(degrees_.cp > 1 ? config.ulysses_degree.value_or(degrees_.cp) : 1),
      world_size_(world_size),
      expert_rule_(config.expert_rule) {
  if (const auto refusal = refuse_expert_degrees(degrees_, etp_, expert_rule_)) fail(refusal->text());
  check_ulysses();
}

void ParallelDims::check_ulysses() const {
  if (!cp_enabled() || cp() % ulysses_degree_ == 0) return;
  fail(str("cp=", cp(), " is not divisible by ulysses_degree=", ulysses_degree_, "; use ulysses_degree in ",
           divisors_text(cp())));
}

int ParallelDims::ep_axis_size() const { return expert_rule_ == ExpertRule::peer ? ep() : 1; }

int ParallelDims::non_dp_size() const { return tp() * cp() * pp() * ep_axis_size(); }

int ParallelDims::efsdp_size() const {
  const int pool = dp_shard() * cp() * tp();
  if (!ep_enabled()) return pool;
  return pool / (expert_rule_ == ExpertRule::peer ? etp_ : ep() * etp_);
}

void ParallelDims::validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len,
                                          bool strict) const {
  if (const auto refusal = refuse_model(degrees_, model, seq_len, strict)) fail(refusal->text());
}

void ParallelDims::require_runnable() const {
  if (pp_enabled()) fail(str("pp=", pp(), " can be planned but not executed; use pp=1 to run"));
}

Mesh ParallelDims::build_mesh() const {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis :
       {MeshAxis{"dp_replicate", dp_replicate()}, MeshAxis{"dp_shard", dp_shard()},
        MeshAxis{"ep", ep_axis_size()}, MeshAxis{"cp", cp()}, MeshAxis{"tp", tp()}, MeshAxis{"pp", pp()}}) {
    if (axis.size > 1) axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({"dp_shard", world_size_});
  return with_parallel_aliases(Mesh(axes));
}

std::string ParallelDims::summary() const {
  return str(degrees_text(degrees_, etp_), " | dp=", dp_size(), " world=", world_size_);
}

void ParallelDims::fail(const std::string& reason) const {
  throw InvalidInput(str(reason, " (", degrees_text(degrees_, etp_), " world_size=", world_size_, ")"));
}

}  // namespace cp
