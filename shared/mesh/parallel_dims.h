// ParallelDims: the degrees of a parallel training run, checked before anything is built.
//
// Carries forward HyperParallel's ParallelDims (inference, validation against world and model, canonical mesh
// order, the aliases fsdp, dp and loss, a one-line summary) and torchtitan's rule for expert parallelism as a
// named choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/mesh/mesh.h"

namespace cp {

// How expert parallelism counts against the world.
enum class ExpertRule {
  peer,    // ep is a mesh axis of its own: dp_replicate*dp_shard*cp*tp*pp*ep == world_size (HyperParallel)
  nested,  // ep*etp divides dp_shard*cp*tp, inside which it lives: it does not multiply the world
           // (torchtitan)
};

// Degrees as a user writes them. dp_shard = -1 means "what is left of the world".
struct ParallelConfig {
  int dp_replicate = 1;
  std::optional<int> dp_shard;  // unset: the legacy `dp`, else -1, so that tp=4 alone fills a world of 8
  std::optional<int> dp;        // legacy: means dp_shard when that is unset, and else nothing
  int cp = 1;
  int tp = 1;
  int pp = 1;
  int ep = 1;
  std::optional<int> etp;             // expert tensor parallel degree, tp or 1; unset: tp. Unused when ep = 1
  std::optional<int> ulysses_degree;  // divides cp; unset: cp. Unused when cp = 1
  ExpertRule expert_rule = ExpertRule::peer;
};

// The fields of a model that the degrees must fit; an unset one is not checked.
struct ModelDims {
  std::optional<int> num_attention_heads, num_key_value_heads, num_experts;
};

class ParallelDims {
 public:
  // Infers dp_shard = -1 and checks every rule; throws InvalidInput with all degrees in the message. pp > 1
  // is a valid degree here: require_runnable() refuses it.
  ParallelDims(const ParallelConfig& config, int world_size);

  int dp_replicate() const { return dp_replicate_; }
  int dp_shard() const { return dp_shard_; }
  int cp() const { return cp_; }
  int tp() const { return tp_; }
  int pp() const { return pp_; }
  int ep() const { return ep_; }
  int etp() const { return etp_; }
  int ulysses_degree() const { return ulysses_degree_; }  // 1 when cp = 1
  int world_size() const { return world_size_; }
  ExpertRule expert_rule() const { return expert_rule_; }

  int dp_size() const { return dp_replicate_ * dp_shard_; }
  int non_dp_size() const;  // tp*cp*pp, times ep under the peer rule
  bool tp_enabled() const { return tp_ > 1; }
  bool cp_enabled() const { return cp_ > 1; }
  bool ep_enabled() const { return ep_ > 1; }
  bool pp_enabled() const { return pp_ > 1; }
  bool fsdp_enabled() const { return dp_shard_ > 1 || dp_replicate_ > 1; }

  // Over how many ranks the parameters of one expert are sharded beside ep and etp: dp_shard*cp*tp / (ep*etp)
  // under the nested rule, without the ep under the peer rule; without ep*etp when ep = 1.
  int efsdp_size() const;
  // Whether experts are sharded on their own: whenever ep > 1, even over a single rank (torchtitan).
  bool efsdp_enabled() const { return ep_enabled(); }

  // Throws InvalidInput unless tp divides the heads and ep the experts. Uneven sequence lengths are supported
  // everywhere, so that cp*tp must divide seq_len only when `strict` (HyperParallel's rule).
  void validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len = {},
                              bool strict = false) const;
  // torchtitan's rule, with load balance: 2*cp for head-tail shards, tp for sequence parallelism.
  int seq_len_divisor() const { return tp_ * 2 * cp_; }

  // Throws InvalidInput for pp > 1: pipeline parallelism is planned, not executed.
  void require_runnable() const;

  // Axes of degree > 1 in the order dp_replicate, dp_shard, ep (peer rule only), cp, tp, pp; one dp_shard
  // axis of the whole world when there are none. Aliases, where the axes behind them exist:
  //   fsdp = dp_shard (parameters are sharded along it)
  //   dp   = dp_replicate x dp_shard
  //   loss = dp x cp (losses and token counts are summed over it)
  Mesh build_mesh() const;

  // "dp_replicate=1 dp_shard=2 cp=4 tp=1 pp=1 ep=1 etp=1 | dp=2 world=8"
  std::string summary() const;

 private:
  int ep_axis_size() const;  // 1 under the nested rule, where ep is no axis of the mesh
  void infer_dp_shard();
  void check_world() const;
  void check_experts() const;
  void check_ulysses() const;
  std::string degrees_text() const;
  [[noreturn]] void fail(const std::string& reason) const;  // throws InvalidInput, with all degrees

  int dp_replicate_, dp_shard_, cp_, tp_, pp_, ep_, etp_, ulysses_degree_, world_size_;
  ExpertRule expert_rule_;
};

}  // namespace cp
