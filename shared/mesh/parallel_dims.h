// The degrees of a parallel run, and the only rules for them: which texts say them, what is inferred, what
// fits the ranks, the experts and the model, and the axes of the mesh.
//
//   ParallelConfig    the degrees as a user writes them: some are missing, one may be -1
//   ParallelDegrees   all of them known; a ParallelLayout (shared/transformer/parallel_layout.h) has them
//   ParallelDims      degrees that passed every rule, for a trainer that checks them before it builds
//                     anything
//
// The planner, cprun's scenarios and ParallelDims call the same functions below. The rules are those of
// HyperParallel's ParallelDims (inference, validation against world and model, canonical mesh order, the
// aliases fsdp, dp and loss, a one-line summary), and torchtitan's rule for expert parallelism as a named
// choice. In one place they are stricter: where dp and dp_shard are both given and differ, HyperParallel goes
// by dp_shard without a word; here that is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/mesh/mesh.h"

namespace cp {

// How expert parallelism counts against the world.
enum class ExpertRule : std::uint8_t {
  peer,    // ep is a mesh axis of its own: dp_replicate*dp_shard*cp*tp*pp*ep == world_size (HyperParallel)
  nested,  // ep*etp divides dp_shard*cp*tp, inside which it lives: it does not multiply the world
           // (torchtitan, and every ParallelLayout)
};

// Degrees as a user writes them; those that are unset are 1, if nothing else is said. dp_shard = -1 means
// "what is left of the world".
struct ParallelConfig {
  std::optional<int> dp_replicate;
  std::optional<int> dp_shard;  // unset: dp, else -1, so that tp=4 alone fills a world of 8
  std::optional<int> dp;        // the old name of dp_shard
  std::optional<int> cp, tp, pp, ep;
  std::optional<int> etp;             // expert tensor parallel degree, tp or 1; unset: tp. Unused when ep = 1
  std::optional<int> ulysses_degree;  // divides cp; unset: cp. Unused when cp = 1
  ExpertRule expert_rule = ExpertRule::peer;
  bool operator==(const ParallelConfig&) const = default;
};

// Known degrees; nothing says yet that they fit a world or a model.
struct ParallelDegrees {
  int dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, pp = 1, ep = 1;
  bool operator==(const ParallelDegrees&) const = default;
  int dp() const { return dp_replicate * dp_shard; }  // replicas of the batch
};

// ---- texts ----

// tp, cp, dp_shard, dp_replicate, dp, pp, ep, etp: what texts of layouts and --fix call the degrees.
// (ulysses_degree, which they have, too, is a key of the attention strategy there.)
std::span<const std::string_view> degree_keys();
// Writes down what the text says of one of these keys; false for another key. Throws InvalidInput for a value
// that is no number from 1 to Mesh::kMaxRanks, or -1 of dp_shard and dp.
bool read_degree(ParallelConfig& config, std::string_view key, std::string_view value);

// ---- rules ----

// dp_shard by either of its names, -1 where it is to be inferred; nothing where neither is given. Throws
// InvalidInput that names both where they differ.
std::optional<int> given_dp_shard(const ParallelConfig& config);

// The degrees that make `world_size` ranks: dp_shard is inferred where it is -1 or not given. Throws
// InvalidInput, with all degrees in the message, for degrees below 1 and for products that are not the world.
// No world: as many ranks as the given degrees need.
ParallelDegrees infer_degrees(const ParallelConfig& config, std::optional<int> world_size = {});

// Why degrees do not fit, and the nearest that do. `kind` is a short name under which refusals are counted.
struct DegreeRefusal {
  std::string kind, reason;
  // Of the key at fault alone: "use tp=7". Whether all else allows it, such as the number of GPUs, is not
  // looked at.
  std::string advice;
  std::string text() const { return advice.empty() ? reason : reason + "; " + advice; }
};

// Experts' tensor parallel groups are the dense ones, or single ranks; and under the nested rule the experts'
// ranks divide the others.
std::optional<DegreeRefusal> refuse_expert_degrees(const ParallelDegrees& degrees, int etp, ExpertRule rule);

// The fields of a model that the degrees must fit; an unset one is not checked.
struct ModelDims {
  std::optional<std::int64_t> num_attention_heads, num_key_value_heads, num_experts;
};
// Unless tp divides the heads and ep the experts. Key and value heads may be shared by several tp ranks, and
// sequences of any length are supported everywhere: tp must divide the former, and cp*tp seq_len, only when
// `strict` (HyperParallel's rules).
std::optional<DegreeRefusal> refuse_model(const ParallelDegrees& degrees, const ModelDims& model,
                                          std::optional<std::int64_t> seq_len = {}, bool strict = false);

// The largest divisor of `number` that is at most `value`: the nearest degree that works. Both are at least
// 1.
std::int64_t nearest_divisor(std::int64_t number, std::int64_t value);

// The mesh, which from now on knows these aliases of its axes dp_replicate, dp_shard and cp, where there are
// any behind them:
//   fsdp = dp_shard (parameters are sharded along it)
//   dp   = dp_replicate x dp_shard
//   loss = dp x cp (losses and token counts are summed over it)
Mesh with_parallel_aliases(const Mesh& mesh);

// ---- a run ----

class ParallelDims {
 public:
  // Infers dp_shard and checks every rule; throws InvalidInput with all degrees in the message. pp > 1 is a
  // valid degree here: require_runnable() refuses it.
  ParallelDims(const ParallelConfig& config, int world_size);

  const ParallelDegrees& degrees() const { return degrees_; }
  int dp_replicate() const { return degrees_.dp_replicate; }
  int dp_shard() const { return degrees_.dp_shard; }
  int cp() const { return degrees_.cp; }
  int tp() const { return degrees_.tp; }
  int pp() const { return degrees_.pp; }
  int ep() const { return degrees_.ep; }
  int etp() const { return etp_; }
  int ulysses_degree() const { return ulysses_degree_; }  // 1 when cp = 1
  int world_size() const { return world_size_; }
  ExpertRule expert_rule() const { return expert_rule_; }

  int dp_size() const { return degrees_.dp(); }
  int non_dp_size() const;  // tp*cp*pp, times ep under the peer rule
  bool tp_enabled() const { return degrees_.tp > 1; }
  bool cp_enabled() const { return degrees_.cp > 1; }
  bool ep_enabled() const { return degrees_.ep > 1; }
  bool pp_enabled() const { return degrees_.pp > 1; }
  bool fsdp_enabled() const { return degrees_.dp() > 1; }

  // Over how many ranks the parameters of one expert are sharded beside ep and etp: dp_shard*cp*tp / (ep*etp)
  // under the nested rule, without the ep under the peer rule; without ep*etp when ep = 1.
  int efsdp_size() const;
  // Whether experts are sharded on their own: whenever ep > 1, even over a single rank (torchtitan).
  bool efsdp_enabled() const { return ep_enabled(); }

  // Throws InvalidInput where refuse_model() refuses.
  void validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len = {},
                              bool strict = false) const;
  // torchtitan's rule, with load balance: 2*cp for head-tail shards, tp for sequence parallelism.
  int seq_len_divisor() const { return degrees_.tp * 2 * degrees_.cp; }

  // Throws InvalidInput for pp > 1: pipeline parallelism is planned, not executed.
  void require_runnable() const;

  // Axes of degree > 1 in the order dp_replicate, dp_shard, ep (peer rule only), cp, tp, pp; one dp_shard
  // axis of the whole world when there are none. With the aliases of with_parallel_aliases().
  Mesh build_mesh() const;

  // "dp_replicate=1 dp_shard=2 cp=4 tp=1 pp=1 ep=1 etp=1 | dp=2 world=8"
  std::string summary() const;

 private:
  int ep_axis_size() const;  // 1 under the nested rule, where ep is no axis of the mesh
  void check_ulysses() const;
  [[noreturn]] void fail(const std::string& reason) const;  // throws InvalidInput, with all degrees

  ParallelDegrees degrees_;
  int etp_, ulysses_degree_, world_size_;
  ExpertRule expert_rule_;
};

}  // namespace cp
