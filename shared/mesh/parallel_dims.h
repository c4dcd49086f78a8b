// ParallelDims: the degrees of a parallel training run, checked before anything is built.
//
// Carries forward HyperParallel's ParallelDims (inference, validation against world and model, canonical mesh order, the
// aliases fsdp, dp and loss, a one-line summary) and torchtitan's rule for expert parallelism as a named choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/mesh/mesh.h"

namespace cp {

// How expert parallelism counts against the world.
enum class ExpertRule {
  peer,    // ep is a mesh axis of its own: dp_replicate*dp_shard*cp*tp*pp*ep == world_size (HyperParallel)
  nested,  // ep lives inside dp_shard*cp*tp, which it must divide: it does not multiply the world (torchtitan)
};

// Degrees as a user writes them. dp_shard = -1 means "what is left of the world".
struct ParallelConfig {
  int dp_replicate = 1;
  std::optional<int> dp_shard;         // unset: the legacy `dp`, else 1
  std::optional<int> dp;               // legacy: means dp_shard when that is unset
  int cp = 1;
  int tp = 1;
  int pp = 1;
  int ep = 1;
  std::optional<int> etp;              // expert tensor parallel degree, tp or 1; unset: tp
  std::optional<int> ulysses_degree;   // inside cp; unset: cp
  ExpertRule expert_rule = ExpertRule::peer;
};

// The fields of a model that the degrees must fit; an unset one is not checked.
struct ModelDims {
  std::optional<int> num_attention_heads, num_key_value_heads, num_experts;
};

class ParallelDims {
 public:
  // Infers dp_shard = -1 and checks every rule; throws InvalidInput with all degrees in the message. pp > 1 is a valid degree
  // here: require_runnable() refuses it.
  ParallelDims(const ParallelConfig& config, int world_size);

  int dp_replicate() const { return dp_replicate_; }
  int dp_shard() const { return dp_shard_; }
  int cp() const { return cp_; }
  int tp() const { return tp_; }
  int pp() const { return pp_; }
  int ep() const { return ep_; }
  int etp() const { return etp_; }
  int ulysses_degree() const { return ulysses_degree_; }
  int world_size() const { return world_size_; }
  ExpertRule expert_rule() const { return expert_rule_; }

  int dp_size() const { return dp_replicate_ * dp_shard_; }
  int non_dp_size() const;             // tp*cp*pp, times ep under the peer rule
  int efsdp_size() const;              // dp_shard*cp*tp / (ep*etp): how many ranks share one expert's shard (nested rule)
  bool tp_enabled() const { return tp_ > 1; }
  bool cp_enabled() const { return cp_ > 1; }
  bool ep_enabled() const { return ep_ > 1; }
  bool pp_enabled() const { return pp_ > 1; }
  bool fsdp_enabled() const { return dp_shard_ > 1 || dp_replicate_ > 1; }
  bool efsdp_enabled() const;          // only with ep > 1, whatever its size (torchtitan)

  // Heads and experts against tp and ep. Uneven sequence lengths are supported everywhere, so that their divisibility is
  // checked only when `strict`: by cp*tp (HyperParallel); seq_len_divisor() gives torchtitan's tp*2*cp.
  void validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len = {}, bool strict = false) const;
  int seq_len_divisor() const { return tp_ * 2 * cp_; }

  // Throws InvalidInput for pp > 1: pipeline parallelism is planned, not executed.
  void require_runnable() const;

  // Axes of degree > 1 in the order dp_replicate, dp_shard, ep (peer rule only), cp, tp, pp; one dp_shard axis of the whole
  // world when there are none. Registers the aliases fsdp, dp and loss (= dp x cp) on it.
  Mesh build_mesh() const;

  // "dp_replicate=1 dp_shard=2 cp=4 tp=1 pp=1 ep=1 etp=1 | dp=2 world=8"
  std::string summary() const;

 private:
  int dp_replicate_, dp_shard_, cp_, tp_, pp_, ep_, etp_, ulysses_degree_, world_size_;
  ExpertRule expert_rule_;
};

}  // namespace cp
