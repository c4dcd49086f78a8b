#include "sim/fuzz/features.h"

#include <algorithm>
#include <array>

#include "shared/base/error.h"
#include "shared/mesh/mesh.h"

namespace cp::sim {
namespace {

using Groups = std::vector<FeatureGroup>;

const FeatureGroup kOrderGroup = {"order", {"parallel", "round_robin", "random", "pct", "exhaustive"}};
const FeatureGroup kDTypes = {"dtype", {"f32", "f16", "bf16", "i32", "i64"}};
const FeatureGroup kTargetGroup = {"target", {"host", "sm80", "sm90", "sm100", "sm120"}};
const FeatureGroup kFaults = {"fault", {"none", "transfer", "rank", "program"}};

const Groups kRedistribution = {
    {"ranks", {"1", "2 to 4", "5 to 16", "17 to 64", "more"}},
    {"axes", {"1", "2", "3", "4 to 6", "7 to 12"}},
    {"axis of one rank", {"no", "yes"}},
    {"numbering", {"from 0", "any"}},
    {"meshes", {"one", "two"}},
    {"dims", {"0", "1", "2", "3", "4"}},
    {"size", {"0", "1", "other", "beyond 2^31"}},
    {"from",
     {"R", "S", "S balanced", "S sized", "S head_tail", "S striped", "S dealt", "S per_sequence", "P"}},
    {"to", {"R", "S", "S balanced", "S sized", "S head_tail", "S striped", "S dealt", "S per_sequence", "P"}},
    {"reduction", {"none", "sum", "avg", "min", "max", "product"}},
    {"order of axes", {"of the mesh", "another"}},
    {"travels as", {"itself", "another"}},
    {"objective", {"time", "bytes"}},
    {"memory", {"ample", "tight"}},
    {"gradient", {"no", "adjoint", "replicated", "scaled"}},
    kDTypes,
    kTargetGroup,
    kOrderGroup,
    kFaults};

const Groups kAttention = {
    {"strategy",
     {"ring", "double_ring", "all_gather", "need_only", "pass_q", "ulysses", "ulysses_ring",
      "ulysses_all_gather"}},
    {"balance", {"contiguous", "head_tail", "striped", "cost", "head_tail_exchange", "per_document"}},
    {"ranks", {"1", "2", "3", "4 to 8", "more"}},
    {"rows", {"fewer than ranks", "even", "uneven"}},
    {"kv rows", {"as many", "others"}},
    {"kv heads", {"1", "fewer than ranks", "as many"}},
    {"group", {"1", "more"}},
    {"batch", {"1", "more"}},
    {"causal", {"no", "yes"}},
    {"chunk", {"no", "yes"}},
    {"softcap", {"no", "yes"}},
    {"sinks", {"no", "yes"}},
    {"dropout", {"no", "yes"}},
    {"latent", {"none", "all expanded", "with a rotated part"}},
    {"keys", {"fewer_bytes", "heads", "latent"}},
    {"window", {"no", "yes"}},
    {"documents", {"none", "one list", "of each entry"}},
    {"offset", {"aligned", "given"}},
    {"pass", {"forward", "backward", "some gradients"}},
    {"lse", {"home", "computed"}},
    {"format", {"bshd", "bnsd", "sbhd"}},
    {"rotation", {"exchange", "all_gather"}},
    {"travels as", {"f32", "input"}},
    {"empty blocks", {"stay", "travel"}},
    {"pieces", {"1", "2"}},
    {"slots", {"2", "3"}},
    {"merges", {"in_turn", "beside"}},
    {"numbering", {"from 0", "any"}},
    {"dims of v", {"as of q", "others"}},
    kDTypes,
    kTargetGroup,
    kOrderGroup,
    kFaults};

const Groups kRecurrence = {{"rule", {"decay", "delta"}},
                            {"strategy", {"sequential", "recursive_doubling", "all_gather", "heads"}},
                            {"balance", {"contiguous", "head_tail", "striped", "per_document"}},
                            {"ranks", {"1", "2", "3", "4 to 8", "more"}},
                            {"rows", {"fewer than ranks", "even", "uneven"}},
                            {"group", {"1", "more"}},
                            {"batch", {"1", "more"}},
                            {"documents", {"none", "some"}},
                            {"pass", {"forward", "backward"}},
                            {"numbering", {"from 0", "any"}},
                            {"dims of v", {"as of q", "others"}},
                            kDTypes,
                            kTargetGroup,
                            kOrderGroup,
                            kFaults};

const Groups kModel = {{"phase", {"training", "prefill", "decode"}},
                       {"tp", {"1", "more"}},
                       {"cp", {"1", "2", "3", "more"}},
                       {"pp", {"1", "more"}},
                       {"ep", {"1", "more"}},
                       {"dp_shard", {"1", "more"}},
                       {"dp_replicate", {"1", "more"}},
                       {"reshard", {"all", "no", "a part"}},
                       {"sync", {"micro_batch", "step"}},
                       {"prefetch", {"0", "1", "more"}},
                       {"bucket", {"1", "more"}},
                       {"threshold", {"none", "some"}},
                       {"recompute", {"none", "selective", "full", "every"}},
                       {"experts", {"no", "yes", "with a shared one"}},
                       {"scores of routers", {"as they are", "corrected", "with moved corrections"}},
                       {"dense layers", {"no", "yes"}},
                       {"window", {"no", "yes"}},
                       {"kinds of layers", {"1", "several"}},
                       {"latent attention", {"no", "heads travel", "rows travel"}},
                       {"recurrence", {"no", "delta", "decay"}},
                       {"convolution", {"no", "yes"}},
                       {"parts of layers", {"both", "one"}},
                       {"prediction layers", {"0", "1", "more"}},
                       {"matrices of an MLP", {"3", "2"}},
                       {"documents", {"none", "some"}},
                       {"tied", {"no", "yes"}},
                       {"kv heads", {"1", "more"}},
                       kDTypes};

const Groups kProof = {{"tp", {"1", "more"}},
                       {"cp", {"1", "2", "3", "more"}},
                       {"pp", {"1", "more"}},
                       {"virtual_stages", {"1", "more"}},
                       {"ep", {"1", "more"}},
                       {"dp_shard", {"1", "more"}},
                       {"dp_replicate", {"1", "more"}},
                       {"zero", {"0", "1", "2", "3"}},
                       {"reshard", {"all", "no", "a part"}},
                       {"sync", {"micro_batch", "step"}},
                       {"prefetch", {"0", "1", "more"}},
                       {"bucket", {"1", "more"}},
                       {"threshold", {"none", "some"}},
                       {"recompute", {"none", "selective", "full", "every"}},
                       {"experts", {"no", "yes", "with a shared one"}},
                       {"scores of routers", {"as they are", "corrected", "with moved corrections"}},
                       {"dense layers", {"no", "yes"}},
                       {"window", {"no", "yes"}},
                       {"kinds of layers", {"1", "several"}},
                       {"latent attention", {"no", "heads travel", "rows travel"}},
                       {"recurrence", {"no", "delta", "decay"}},
                       {"convolution", {"no", "yes"}},
                       {"parts of layers", {"both", "one"}},
                       {"prediction layers", {"0", "1", "more"}},
                       {"matrices of an MLP", {"3", "2"}},
                       {"documents", {"none", "some", "of each sequence"}},
                       {"tied", {"no", "yes"}},
                       {"kv heads", {"1", "more"}},
                       {"optimizer", {"adamw", "adamw_16", "adamw:offload", "sgd", "sgd_momentum"}},
                       {"labels", {"all", "some", "a sequence without"}},
                       {"tokens of experts", {"all", "some dropped"}},
                       {"dropout", {"no", "yes"}},
                       kDTypes};

const Groups kFlows = {
    {"links", {"1", "2", "more"}},           {"flows", {"1", "2", "3 to 8", "more"}},
    {"own limits", {"none", "some", "all"}}, {"begin", {"together", "one after the other"}},
    {"path", {"none", "one link", "more"}},  {"limits", {"stay", "change"}}};

const Groups kProgram = {
    {"ranks", {"1", "2", "3"}},
    {"streams", {"1", "2", "3"}},
    {"buffers", {"1", "2", "3", "4 and more"}},
    {"items", {"1 to 3", "4 to 6", "more"}},
    {"iterations", {"none", "1", "2", "3 and more"}},
    {"edges", {"conflicts", "builder", "more"}},
    {"flaw",
     {"none", "drop_edge", "earlier_edge", "own_edge", "later_edge", "drop_step", "swap_steps", "other_count",
      "other_stream", "move_view", "move_temporary", "shorten_use", "shrink_arena", "other_reduction",
      "other_root", "other_counts", "other_inputs", "other_dtype"}},
    {"order", {"round_robin", "random", "pct"}}};

// Collects the answers by their words.
class Answers {
 public:
  explicit Answers(std::span<const FeatureGroup> groups) : groups_(groups) {}

  void add(std::string_view group, std::string_view value) {
    int number = 0;
    for (const FeatureGroup& known : groups_) {
      const auto found = std::find(known.values.begin(), known.values.end(), value);
      if (known.name == group) {
        if (found != known.values.end())
          numbers_.push_back(number + static_cast<int>(found - known.values.begin()));
        return;
      }
      number += static_cast<int>(known.values.size());
    }
    CP_INVARIANT(false, "no group of features ", group);
  }
  std::vector<int> take() {
    std::sort(numbers_.begin(), numbers_.end());
    numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
    return std::move(numbers_);
  }

 private:
  std::span<const FeatureGroup> groups_;
  std::vector<int> numbers_;
};

std::string word(proto::DType dtype) { return dtype == 0 ? "f32" : proto::DType_Name(dtype); }

void add_common(const proto::FuzzCase& fuzz_case, proto::DType dtype, const std::string& target,
                Answers& answers) {
  answers.add("dtype", word(dtype));
  answers.add("target", target.empty() ? "host" : target);
  answers.add("order", proto::Order::Kind_Name(fuzz_case.order().kind()));
  if (fuzz_case.faults().empty()) answers.add("fault", "none");
  for (const proto::Fault& fault : fuzz_case.faults()) {
    answers.add("fault", fault.kind() <= proto::Fault::truncate    ? "transfer"
                         : fault.kind() <= proto::Fault::dead_rank ? "rank"
                                                                   : "program");
  }
}

std::string_view split_word(std::string_view placement) {
  for (const auto& [part, name] :
       {std::pair{"per_sequence", "S per_sequence"}, std::pair{"balanced", "S balanced"},
        std::pair{"sizes", "S sized"}, std::pair{"head_tail", "S head_tail"},
        std::pair{"striped", "S striped"}, std::pair{"dealt", "S dealt"}}) {
    if (placement.find(part) != std::string_view::npos) return name;
  }
  return "S";
}

std::vector<int> features(const proto::FuzzCase& fuzz_case, const proto::Redistribute& job) {
  Answers answers(kRedistribution);
  const Mesh mesh = Mesh::parse(job.mesh());
  const int ranks = mesh.size(), axes = mesh.num_axes();
  answers.add("ranks", ranks == 1    ? "1"
                       : ranks <= 4  ? "2 to 4"
                       : ranks <= 16 ? "5 to 16"
                       : ranks <= 64 ? "17 to 64"
                                     : "more");
  answers.add("axes", axes == 1 ? "1" : axes == 2 ? "2" : axes == 3 ? "3" : axes <= 6 ? "4 to 6" : "7 to 12");
  const bool has_one = std::any_of(mesh.axes().begin(), mesh.axes().end(),
                                   [](const MeshAxis& axis) { return axis.size == 1; });
  answers.add("axis of one rank", has_one ? "yes" : "no");
  answers.add("numbering", job.mesh().find('@') == std::string::npos ? "from 0" : "any");
  answers.add("meshes", job.to_mesh().empty() ? "one" : "two");
  const auto sizes =
      job.shape() == "scalar" ? std::vector<std::int64_t>{} : parse_ints(job.shape(), 'x', "size");
  answers.add("dims", str(sizes.size()));
  for (const std::int64_t size : sizes)
    answers.add("size", size == 0 ? "0" : size == 1 ? "1" : size >> 31 != 0 ? "beyond 2^31" : "other");
  bool is_partial = false;
  for (const auto& [group, text] : {std::pair{"from", &job.from()}, std::pair{"to", &job.to()}}) {
    for (const std::string_view placement : split(*text, ',')) {
      const bool partial = placement.starts_with("P");
      answers.add(group, partial ? "P" : placement.starts_with("R") ? "R" : split_word(placement));
      if (partial) answers.add("reduction", placement.substr(2, placement.find(')') - 2));
      is_partial = is_partial || partial;
    }
    if (text->find(")[") != std::string::npos) answers.add("order of axes", "another");
  }
  if (!is_partial) answers.add("reduction", "none");
  if (job.from().find(")[") == std::string::npos) answers.add("order of axes", "of the mesh");
  answers.add("travels as", job.travel_dtype() == 0 ? "itself" : "another");
  answers.add("objective", job.objective() == proto::Redistribute::bytes ? "bytes" : "time");
  answers.add("memory", job.has_max_memory_factor() && job.max_memory_factor() < 1 ? "tight" : "ample");
  answers.add("gradient", job.gradient() == proto::Redistribute::forward ? "no"
                          : job.gradient_scale() != proto::Redistribute::none
                              ? "scaled"
                              : proto::Redistribute::Gradient_Name(job.gradient()));
  add_common(fuzz_case, job.dtype(), job.target(), answers);
  return answers.take();
}

std::vector<int> features(const proto::FuzzCase& fuzz_case, const proto::Attention& job) {
  Answers answers(kAttention);
  const int ranks = Mesh::parse(job.mesh()).size();
  const std::int64_t kv = job.has_kv_heads() ? job.kv_heads() : job.q_heads();
  answers.add("strategy", job.strategy());
  const std::string& balance = job.balance();
  answers.add("balance",
              balance.empty() ? "contiguous" : std::string_view(balance).substr(0, balance.find(':')));
  answers.add("ranks", ranks <= 3 ? str(ranks) : ranks <= 8 ? "4 to 8" : "more");
  answers.add("rows", job.seq_len() < ranks        ? "fewer than ranks"
                      : job.seq_len() % ranks == 0 ? "even"
                                                   : "uneven");
  answers.add("kv rows", job.has_kv_len() ? "others" : "as many");
  answers.add("kv heads", kv == 1 ? "1" : kv < ranks ? "fewer than ranks" : "as many");
  answers.add("group", job.q_heads() == kv ? "1" : "more");
  answers.add("batch", job.batch() > 1 ? "more" : "1");
  answers.add("causal", job.causal() ? "yes" : "no");
  answers.add("chunk", job.has_chunk() ? "yes" : "no");
  answers.add("softcap", job.softcap() != 0 ? "yes" : "no");
  answers.add("sinks", job.sinks() ? "yes" : "no");
  answers.add("dropout", job.dropout() != 0 ? "yes" : "no");
  answers.add("latent", job.latent() == 0     ? "none"
                        : job.rope_dim() == 0 ? "all expanded"
                                              : "with a rotated part");
  answers.add("keys", job.keys().empty() ? "fewer_bytes" : job.keys());
  answers.add("window", job.has_window() ? "yes" : "no");
  answers.add("documents", job.documents().empty()                          ? "none"
                           : job.documents().find(';') == std::string::npos ? "one list"
                                                                            : "of each entry");
  answers.add("offset", job.has_query_offset() ? "given" : "aligned");
  answers.add("pass", !job.backward() ? "forward" : job.gradients().empty() ? "backward" : "some gradients");
  answers.add("lse", job.lse().empty() ? "home" : job.lse());
  answers.add("format", job.format().empty() ? "bshd" : job.format());
  answers.add("rotation", job.rotation().empty() ? "exchange" : job.rotation());
  answers.add("travels as", job.dkv_dtype().empty() && job.merge_dtype().empty() ? "f32" : "input");
  answers.add("empty blocks", job.send_empty() ? "travel" : "stay");
  answers.add("pieces", job.has_pieces() ? "2" : "1");
  answers.add("slots", job.has_slots() ? "3" : "2");
  answers.add("merges", job.merges().empty() ? "in_turn" : job.merges());
  answers.add("numbering", job.mesh().find('@') == std::string::npos ? "from 0" : "any");
  answers.add("dims of v", job.has_v_head_dim() ? "others" : "as of q");
  add_common(fuzz_case, job.dtype(), job.target(), answers);
  return answers.take();
}

std::vector<int> features(const proto::FuzzCase& fuzz_case, const proto::Recurrence& job) {
  Answers answers(kRecurrence);
  const int ranks = Mesh::parse(job.mesh()).size();
  const std::string& balance = job.balance();
  answers.add("rule", job.rule());
  answers.add("strategy", job.strategy());
  answers.add("balance",
              balance.empty() ? "contiguous" : std::string_view(balance).substr(0, balance.find(':')));
  answers.add("ranks", ranks <= 3 ? str(ranks) : ranks <= 8 ? "4 to 8" : "more");
  answers.add("rows", job.seq_len() < ranks        ? "fewer than ranks"
                      : job.seq_len() % ranks == 0 ? "even"
                                                   : "uneven");
  answers.add("group", job.has_value_heads() ? "more" : "1");
  answers.add("batch", job.batch() > 1 ? "more" : "1");
  answers.add("documents", job.documents().empty() ? "none" : "some");
  answers.add("pass", job.backward() ? "backward" : "forward");
  answers.add("numbering", job.mesh().find('@') == std::string::npos ? "from 0" : "any");
  answers.add("dims of v", job.has_v_head_dim() ? "others" : "as of q");
  add_common(fuzz_case, job.dtype(), job.target(), answers);
  return answers.take();
}

// The value of a key of its layout, or what it is where the text does not say it.
std::string layout_word(const proto::ModelStep& job, std::string_view key, std::string_view without = "1") {
  for (const std::string_view part : split(job.layout(), ',')) {
    if (part.starts_with(str(key, "="))) return std::string(part.substr(key.size() + 1));
  }
  return std::string(without);
}

// When sharded parameters are gathered and given up, and gradients reduced.
void add_sharding(const proto::ModelStep& job, Answers& answers) {
  const std::string reshard = layout_word(job, "reshard", "all"), ahead = layout_word(job, "prefetch");
  answers.add("reshard", reshard == "all" || reshard == "no" ? reshard : "a part");
  answers.add("sync", layout_word(job, "sync", "micro_batch"));
  answers.add("bucket", layout_word(job, "bucket") == "1" ? "1" : "more");
  answers.add("threshold", layout_word(job, "threshold", "none") == "none" ? "none" : "some");
  answers.add("prefetch", ahead == "0" || ahead == "1" ? ahead : "more");
}

// What steps that are planned and steps that are proved have alike.
void add_step(const proto::ModelStep& job, Answers& answers) {
  for (const std::string_view key : {"tp", "pp", "ep", "dp_shard", "dp_replicate"})
    answers.add(key, layout_word(job, key) == "1" ? "1" : "more");
  const std::string cp = layout_word(job, "cp");
  answers.add("cp", cp == "1" || cp == "2" || cp == "3" ? cp : "more");
  add_sharding(job, answers);
  const std::string recompute = layout_word(job, "recompute");
  answers.add("recompute", recompute == "1" ? "none" : recompute.starts_with("every") ? "every" : recompute);
  answers.add("experts", job.shared_expert() > 0 ? "with a shared one" : job.experts() > 0 ? "yes" : "no");
  answers.add("scores of routers", job.moves_corrections() ? "with moved corrections"
                                   : job.corrects_scores() ? "corrected"
                                                           : "as they are");
  const bool dense =
      std::any_of(job.kinds().begin(), job.kinds().end(), [](const auto& kind) { return kind.dense(); });
  answers.add("dense layers", dense ? "yes" : "no");
  answers.add("window", job.has_window() ? "yes" : "no");
  answers.add("kinds of layers", job.kinds_size() > 1 ? "several" : "1");
  answers.add("latent attention", job.latent_kv_rank() == 0         ? "no"
                                  : layout_word(job, "keys") == "1" ? "heads travel"
                                                                    : "rows travel");
  answers.add("recurrence", job.recurrence_value_heads() == 0 ? "no"
                            : job.recurrence_decay()          ? "decay"
                                                              : "delta");
  answers.add("convolution", job.convolution_taps() > 0 ? "yes" : "no");
  const bool of_one_part = std::any_of(job.kinds().begin(), job.kinds().end(),
                                       [](const auto& kind) { return kind.no_mixer() || kind.no_mlp(); });
  answers.add("parts of layers", of_one_part ? "one" : "both");
  answers.add("prediction layers", job.prediction_layers() == 0   ? "0"
                                   : job.prediction_layers() == 1 ? "1"
                                                                  : "more");
  answers.add("matrices of an MLP", job.ungated_mlp() ? "2" : "3");
  answers.add("documents", job.documents().empty()                          ? "none"
                           : job.documents().find(';') == std::string::npos ? "some"
                                                                            : "of each sequence");
  answers.add("tied", job.tied_embeddings() ? "yes" : "no");
  answers.add("kv heads", job.kv_heads() == 1 ? "1" : "more");
  answers.add("dtype", word(job.dtype()));
}

std::vector<int> features(const proto::FuzzCase&, const proto::ModelStep& job) {
  Answers answers(kModel);
  answers.add("phase", proto::PlanLayouts::Phase_Name(job.phase()));
  add_step(job, answers);
  return answers.take();
}

std::vector<int> features(const proto::FuzzCase&, const proto::Proof& job) {
  Answers answers(kProof);
  const proto::ModelStep& step = job.step();
  add_step(step, answers);
  answers.add("virtual_stages", layout_word(step, "virtual_stages") == "1" ? "1" : "more");
  answers.add("zero", layout_word(step, "zero", "0"));
  answers.add("optimizer", step.optimizer().empty() ? "adamw" : step.optimizer());
  answers.add("labels", job.without_label() > 0 ? "a sequence without" : job.ignored() > 0 ? "some" : "all");
  answers.add("tokens of experts", step.has_expert_imbalance() ? "some dropped" : "all");
  answers.add("dropout", step.attention_dropout() != 0 ? "yes" : "no");
  return answers.take();
}

std::vector<int> features(const proto::FuzzCase&, const proto::Flows& job) {
  Answers answers(kFlows);
  const int links = job.capacities_size(), flows = job.flows_size();
  answers.add("links", links <= 1 ? "1" : links == 2 ? "2" : "more");
  answers.add("flows", flows <= 1 ? "1" : flows == 2 ? "2" : flows <= 8 ? "3 to 8" : "more");
  const auto limited = std::count_if(job.flows().begin(), job.flows().end(),
                                     [](const auto& flow) { return flow.limit() > 0; });
  answers.add("own limits", limited == 0 ? "none" : limited == flows ? "all" : "some");
  for (const proto::Flows::Flow& flow : job.flows()) {
    answers.add("begin", flow.begin_ns() == 0 ? "together" : "one after the other");
    answers.add("path", flow.links().empty() ? "none" : flow.links_size() == 1 ? "one link" : "more");
    answers.add("limits", flow.change_ns() > 0 ? "change" : "stay");
  }
  return answers.take();
}

std::vector<int> features(const proto::FuzzCase& fuzz_case, const proto::Program& job) {
  Answers answers(kProgram);
  answers.add("ranks", str(job.ranks()));
  answers.add("streams", str(job.streams()));
  answers.add("buffers", job.buffers() >= 4 ? "4 and more" : str(job.buffers()));
  answers.add("items", job.items() <= 3 ? "1 to 3" : job.items() <= 6 ? "4 to 6" : "more");
  answers.add("iterations", job.iterations() == 0   ? "none"
                            : job.iterations() <= 2 ? str(job.iterations())
                                                    : "3 and more");
  answers.add("edges", proto::Program::Edges_Name(job.edges()));
  answers.add("flaw", proto::Program::Flaw_Name(job.flaw()));
  answers.add("order", proto::Order::Kind_Name(fuzz_case.order().kind()));
  return answers.take();
}

// More than the largest number of a kind in fuzz_case.proto, since tables are found by that number.
constexpr std::size_t kMostKinds = 16;
constexpr std::array kKinds = {proto::FuzzCase::kRedistribute, proto::FuzzCase::kAttention,
                               proto::FuzzCase::kRecurrence,   proto::FuzzCase::kModel,
                               proto::FuzzCase::kProof,        proto::FuzzCase::kProgram,
                               proto::FuzzCase::kFlows};

}  // namespace

std::span<const FeatureGroup> feature_groups(proto::FuzzCase::JobCase job) {
  switch (job) {
    case proto::FuzzCase::kRedistribute:
      return kRedistribution;
    case proto::FuzzCase::kAttention:
      return kAttention;
    case proto::FuzzCase::kRecurrence:
      return kRecurrence;
    case proto::FuzzCase::kModel:
      return kModel;
    case proto::FuzzCase::kProof:
      return kProof;
    case proto::FuzzCase::kFlows:
      return kFlows;
    case proto::FuzzCase::kProgram:
      return kProgram;
    default:
      return {};
  }
}

std::vector<int> features_of(const proto::FuzzCase& fuzz_case) {
  switch (fuzz_case.job_case()) {
    case proto::FuzzCase::kRedistribute:
      return features(fuzz_case, fuzz_case.redistribute());
    case proto::FuzzCase::kAttention:
      return features(fuzz_case, fuzz_case.attention());
    case proto::FuzzCase::kRecurrence:
      return features(fuzz_case, fuzz_case.recurrence());
    case proto::FuzzCase::kModel:
      return features(fuzz_case, fuzz_case.model());
    case proto::FuzzCase::kProof:
      return features(fuzz_case, fuzz_case.proof());
    case proto::FuzzCase::kFlows:
      return features(fuzz_case, fuzz_case.flows());
    case proto::FuzzCase::kProgram:
      return features(fuzz_case, fuzz_case.program());
    default:
      return {};
  }
}

Coverage::Coverage() : tables_(kMostKinds) {
  for (const auto kind : kKinds) {
    Table& table = table_of(kind);
    int group = 0;
    for (const FeatureGroup& known : feature_groups(kind)) {
      table.group_of.insert(table.group_of.end(), known.values.size(), group);
      ++group;
    }
    const std::size_t values = table.group_of.size();
    table.seen.resize(values * values);
    for (std::size_t a = 0; a < values; ++a) {
      for (std::size_t b = 0; b < a; ++b) table.cells += table.group_of[a] != table.group_of[b] ? 1 : 0;
    }
  }
}

int Coverage::add(const proto::FuzzCase& fuzz_case) {
  Table& table = table_of(fuzz_case.job_case());
  if (!std::exchange(table.used, true)) cells_ += table.cells;
  const std::vector<int> features = features_of(fuzz_case);
  int found = 0;
  for (const int a : features) {
    for (const int b : features) {
      const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
      if (b >= a || table.group_of[i] == table.group_of[j]) continue;
      auto cell = table.seen[i * table.group_of.size() + j];
      if (cell) continue;
      cell = true;
      ++found;
    }
  }
  covered_ += static_cast<std::size_t>(found);
  return found;
}

}  // namespace cp::sim
