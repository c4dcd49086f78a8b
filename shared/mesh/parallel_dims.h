// The degrees of a parallel run (tp, cp, dp, pp, ep, ...) and the only rules for them: how texts spell them,
// what is inferred, whether they fit the ranks, the experts and the model, and which mesh they make.
//
// The degrees pass through three types:
//
//   ParallelConfig    as a user writes them: some are missing, one may be -1
//   ParallelDegrees   all of them known; a ParallelLayout (shared/transformer/parallel_layout.h) has them
//   ParallelDims      degrees that passed every rule, for a trainer that checks them before it starts
//
// For example, tp=4 and cp=2 in a world of 32 ranks are inferred to have dp_shard=4; in a world of 12 they
// are refused, with the nearest worlds that work.
//
// The planner, cprun's scenarios and ParallelDims all call the functions below, so there is one answer to
// what is legal. The rules are those of HyperParallel's ParallelDims: inference, validation against world and
// model, the canonical order of the mesh, the aliases fsdp, dp and loss, and a summary of one line.
// torchtitan's rule for expert parallelism is a choice beside HyperParallel's. In one place the rules are
// stricter: if dp and dp_shard are both given and differ, HyperParallel silently goes by dp_shard, and we
// refuse.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/mesh/mesh.h"

namespace cp {

// How expert parallelism counts against the world. Under `peer`, dp_shard=2 tp=2 ep=2 needs 8 ranks; under
// `nested` 4, which hold the experts, too.
enum class ExpertRule : std::uint8_t {
  peer,  // ep is a mesh axis of its own: dp_replicate*dp_shard*cp*tp*pp*ep == world_size (HyperParallel)
  // ep lives inside the other axes and does not multiply the world: ep*etp divides dp_shard*cp*tp
  // (torchtitan, and every ParallelLayout)
  nested,
};

std::string_view name(ExpertRule rule);
ExpertRule parse_expert_rule(std::string_view text);  // throws InvalidInput that says what each means

// Degrees as a user writes them. An unset degree is 1 unless its comment says otherwise. dp_shard = -1 means
// "whatever is left of the world".
struct ParallelConfig {
  std::optional<int> dp_replicate;
  std::optional<int> dp_shard;  // unset: dp if that is set, else -1, so that tp=4 alone fills a world of 8
  std::optional<int> dp;        // the older name of dp_shard; if both are given they must agree
  std::optional<int> cp, tp, pp, ep;
  std::optional<int> etp;             // expert tensor parallel degree: tp or 1; unset: tp. Not used if ep = 1
  std::optional<int> ulysses_degree;  // divides cp; unset: cp. Not used if cp = 1
  ExpertRule expert_rule = ExpertRule::peer;
  bool operator==(const ParallelConfig&) const = default;
};

// Degrees that are all known. Nothing says yet that they fit a world or a model.
struct ParallelDegrees {
  int dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, pp = 1, ep = 1;
  bool operator==(const ParallelDegrees&) const = default;
  int dp() const { return dp_replicate * dp_shard; }  // how many replicas share the batch
};

// ---- texts ----

// The keys under which texts of layouts and --fix know the degrees: tp, cp, dp_shard, dp_replicate, dp, pp,
// ep and etp. (Those texts know ulysses_degree, too, but as a key of the attention strategy.)
std::span<const std::string_view> degree_keys();
// Stores the value of one of these keys in `config`; returns false if `key` is none of them. Throws
// InvalidInput if the value is not a number from 1 to Mesh::kMaxRanks (or -1 for dp_shard and dp).
bool read_degree(ParallelConfig& config, std::string_view key, std::string_view value);

// ---- rules ----

// dp_shard by either of its names: -1 if it is to be inferred, nothing if neither name is given. Throws
// InvalidInput that shows both if they differ.
std::optional<int> given_dp_shard(const ParallelConfig& config);

// Completes the degrees so that they make `world_size` ranks: infers dp_shard if it is -1 or not given.
// Without a world size the world has as many ranks as the given degrees need. Throws InvalidInput, with all
// degrees in the message, if a degree is below 1 or their product is not the world.
ParallelDegrees infer_degrees(const ParallelConfig& config, std::optional<int> world_size = {});

// Why degrees do not fit, and the nearest that do. `kind` is a short name by which a search counts its
// refusals.
struct DegreeRefusal {
  std::string kind, reason;
  // The nearest value of the key at fault, for example "use tp=7". Nobody has checked that this value
  // satisfies all other rules, such as the number of GPUs.
  std::string advice;
  std::string text() const { return advice.empty() ? reason : reason + "; " + advice; }
};

// Refuses an etp other than tp or 1 (the experts' tensor-parallel groups must be the dense ones or single
// ranks), and under the nested rule an ep*etp that does not divide dp_shard*cp*tp.
std::optional<DegreeRefusal> refuse_expert_degrees(const ParallelDegrees& degrees, int etp, ExpertRule rule);

// The fields of a model that the degrees must fit. An unset field is not checked.
struct ModelDims {
  std::optional<std::int64_t> num_attention_heads, num_key_value_heads, num_experts;
};
// Refuses a tp that does not divide the heads, and an ep that does not divide the experts. The rules for key
// and value heads and for sequences are milder than HyperParallel's unless `strict` is set: several tp ranks
// may share one kv head, so that num_key_value_heads and tp need only divide one another; and sequences of
// any length are supported, so that seq_len is not checked. With `strict`, tp must divide num_key_value_heads
// and cp*tp must divide seq_len.
std::optional<DegreeRefusal> refuse_model(const ParallelDegrees& degrees, const ModelDims& model,
                                          std::optional<std::int64_t> seq_len = {}, bool strict = false);

// The largest divisor of `number` that is at most `value`: the nearest degree that works. Both must be at
// least 1.
std::int64_t nearest_divisor(std::int64_t number, std::int64_t value);

// Returns the mesh with these aliases for its axes dp_replicate, dp_shard and cp. An alias stands for those
// of its axes that the mesh has, and is left out if it has none of them:
//   fsdp = dp_shard (parameters are sharded along it)
//   dp   = dp_replicate x dp_shard
//   loss = dp x cp (losses and token counts are summed over it)
Mesh with_parallel_aliases(const Mesh& mesh);

// ---- a run ----

class ParallelDims {
 public:
  // Infers dp_shard and checks every rule. Throws InvalidInput with all degrees in the message. pp > 1 is a
  // valid degree here; require_runnable() is what refuses it.
  ParallelDims(const ParallelConfig& config, int world_size);

  const ParallelDegrees& degrees() const { return degrees_; }
  int dp_replicate() const { return degrees_.dp_replicate; }
  int dp_shard() const { return degrees_.dp_shard; }
  int cp() const { return degrees_.cp; }
  int tp() const { return degrees_.tp; }
  int pp() const { return degrees_.pp; }
  int ep() const { return degrees_.ep; }
  int etp() const { return etp_; }
  int ulysses_degree() const { return ulysses_degree_; }  // 1 if cp = 1
  int world_size() const { return world_size_; }
  ExpertRule expert_rule() const { return expert_rule_; }

  int dp_size() const { return degrees_.dp(); }
  int non_dp_size() const;  // tp*cp*pp, times ep under the peer rule: world_size / dp_size
  bool tp_enabled() const { return degrees_.tp > 1; }
  bool cp_enabled() const { return degrees_.cp > 1; }
  bool ep_enabled() const { return degrees_.ep > 1; }
  bool pp_enabled() const { return degrees_.pp > 1; }
  bool fsdp_enabled() const { return degrees_.dp() > 1; }

  // The number of ranks over which the parameters of one expert are sharded, beyond what ep and etp split:
  // dp_shard*cp*tp / (ep*etp) under the nested rule, and dp_shard*cp*tp / etp under the peer rule, where ep
  // is no part of the pool. Without expert parallelism (ep = 1) it is dp_shard*cp*tp.
  int efsdp_size() const;
  // Whether experts are sharded apart from the dense parameters: whenever ep > 1, even if efsdp_size() is 1
  // (torchtitan does the same).
  bool efsdp_enabled() const { return ep_enabled(); }

  // Throws InvalidInput if refuse_model() refuses.
  void validate_against_model(const ModelDims& model, std::optional<std::int64_t> seq_len = {},
                              bool strict = false) const;
  // What seq_len should be a multiple of for shards of equal size (torchtitan's rule with load balance): 2*cp
  // for the head and tail pieces, times tp for sequence parallelism.
  int seq_len_divisor() const { return degrees_.tp * 2 * degrees_.cp; }

  // Throws InvalidInput if pp > 1: pipeline parallelism is planned, not executed.
  void require_runnable() const;

  // A mesh of the ranks 0 .. world_size-1 with the axes of degree > 1, in the order dp_replicate, dp_shard,
  // ep (under the peer rule only), cp, tp, pp: pp varies fastest. If no degree is above 1, there is one axis
  // dp_shard of the whole world. The mesh has the aliases of with_parallel_aliases().
  Mesh build_mesh() const;

  // "dp_replicate=1 dp_shard=2 cp=4 tp=1 pp=1 ep=1 etp=1 | dp=2 world=8"
  std::string summary() const;

 private:
  int ep_axis_size() const;  // 1 under the nested rule, where ep is no axis of the mesh
  void check_ulysses() const;
  [[noreturn]] void fail(const std::string& reason) const;  // throws InvalidInput with all degrees

  ParallelDegrees degrees_;
  int etp_, ulysses_degree_, world_size_;
  ExpertRule expert_rule_;
};

}  // namespace cp
